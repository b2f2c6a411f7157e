#include "runtime/base/Published.h"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace shardc {
namespace {

constexpr int kWaiting = 64;
constexpr size_t kTextMax = 256;

/// Sets the socket address of a name; false if the name is empty or too long.
bool addressOf(const std::string &name, sockaddr_un &address, socklen_t &bytes) {
  address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    return false;
  name.copy(address.sun_path + 1, name.size()); // a leading 0 makes it abstract
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return true;
}

} // namespace

Result<Socket> publish(const std::string &name) {
  sockaddr_un address;
  socklen_t bytes = 0;
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!addressOf(name, address, bytes) || !socket.isOpen() ||
      ::bind(socket.fd(), reinterpret_cast<const sockaddr *>(&address), bytes) != 0 ||
      ::listen(socket.fd(), kWaiting) != 0)
    return makeStatus(errno == EADDRINUSE ? StatusCode::Unavailable : StatusCode::Exhausted,
                      "cannot publish '{}': {}", name, std::strerror(errno));
  return socket;
}

Status answerAll(const Socket &published, const std::string &text) {
  while (true) {
    ASSIGN_OR_RETURN(Socket socket, acceptOne(published));
    if (!socket.isOpen())
      return Status::ok();
    static_cast<void>(::send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL));
  }
}

Result<std::string> findPublished(const std::string &name, double seconds) {
  sockaddr_un address;
  socklen_t bytes = 0;
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.isOpen())
    return makeStatus(StatusCode::Exhausted, "cannot look for '{}': {}", name,
                      std::strerror(errno));
  if (!addressOf(name, address, bytes) ||
      ::connect(socket.fd(), reinterpret_cast<const sockaddr *>(&address), bytes) != 0)
    return std::string();
  pollfd entry = {socket.fd(), POLLIN, 0};
  char text[kTextMax];
  if (::poll(&entry, 1, static_cast<int>(seconds * 1e3)) <= 0)
    return std::string();
  ssize_t count = ::recv(socket.fd(), text, sizeof text, 0);
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : "";
}

} // namespace shardc
