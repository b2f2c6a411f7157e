#include "runtime/base/Socket.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shardc {
namespace {

using Clock = std::chrono::steady_clock;

/// The end of a wait. Time left is limited so that it fits poll().
struct Deadline {
  Clock::time_point end;
  explicit Deadline(double seconds)
      : end(Clock::now() +
            std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e3))) {}
  int millisecondsLeft() const {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  }
  bool isOver() const { return Clock::now() >= end; }
};

/// Whether the process lacks descriptors or memory, which waiting does not change.
bool isExhausted(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

struct {
  int first = 0, last = 0;
} ports; ///< for port 0; last is 0: any

struct FreeAddresses {
  void operator()(addrinfo *list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string &address, int port, bool isPassive) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (isPassive ? AI_PASSIVE : 0);
  addrinfo *list = nullptr;
  int error = ::getaddrinfo(address.empty() ? nullptr : address.c_str(),
                            std::to_string(port).c_str(), &hints, &list);
  if (error == EAI_SYSTEM && isExhausted(errno))
    return makeStatus(StatusCode::Exhausted, "cannot look up '{}': {}", address,
                      std::strerror(errno));
  if (error != 0)
    return makeStatus(StatusCode::NotFound, "'{}' has no address: {}", address,
                      ::gai_strerror(error));
  return Addresses(list);
}

/// Waits for events: returns 1 if ready, 0 after the deadline, -1 on failure.
int waitFor(int fd, short events, const Deadline &deadline) {
  while (true) {
    pollfd entry = {fd, events, 0};
    int ready = ::poll(&entry, 1, deadline.millisecondsLeft());
    if (ready < 0 && errno == EINTR)
      continue;
    if (ready != 0 || deadline.isOver())
      return ready;
  }
}

/// Detects a machine that disappears without closing its connections after five minutes: the first
/// probe comes after kIdleSeconds, and kProbes probes may stay unanswered.
constexpr int kIdleSeconds = 60, kProbeSeconds = 30, kProbes = 8;

void setUp(int fd) {
  auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1); // messages are small and awaited
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

Status systemStatus(StatusCode code, const char *what, const std::string &where) {
  return makeStatus(code, "cannot {} {}: {}", what, where, std::strerror(errno));
}

/// Whether a socket is connected to itself. If nobody listens on a port of this machine, the system
/// may give that very port to the connecting socket.
bool isOwnOtherEnd(int fd) {
  sockaddr_storage own = {}, other = {};
  socklen_t ownSize = sizeof own, otherSize = sizeof other;
  return ::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &ownSize) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr *>(&other), &otherSize) == 0 &&
         ownSize == otherSize && std::memcmp(&own, &other, ownSize) == 0;
}

/// Connects once. Returns an error number, or 0 if `socket` is connected.
int connectOnce(const addrinfo &at, const Deadline &deadline, Socket &socket) {
  socket =
      Socket(::socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
  if (!socket.isOpen())
    return errno;
  int on = 1; // so that another process can soon listen on the port that this socket gets
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error = ::connect(socket.fd(), at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (waitFor(socket.fd(), POLLOUT, deadline) <= 0)
      return ETIMEDOUT;
    socklen_t size = sizeof error;
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  return error == 0 && isOwnOtherEnd(socket.fd()) ? ECONNREFUSED : error;
}

template <typename Transfer>
Status transferAll(const Socket &socket, size_t bytes, double seconds, short events,
                   Transfer transfer) {
  Deadline deadline(seconds);
  for (size_t at = 0; at < bytes;) {
    ssize_t moved = transfer(at);
    if (moved > 0) {
      at += static_cast<size_t>(moved);
      continue;
    }
    if (moved == 0)
      return Status(StatusCode::Unavailable, "the other end has closed the connection");
    if (errno == EINTR)
      continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return makeStatus(StatusCode::Unavailable, "the connection failed: {}", std::strerror(errno));
    if (waitFor(socket.fd(), events, deadline) <= 0)
      return makeStatus(StatusCode::Unavailable, "the other end is silent for {} s", seconds);
  }
  return Status::ok();
}

} // namespace

void limitPorts(int first, int last) { ports = {first, last}; }

Result<Socket> listenOn(const std::string &address, int port) {
  if (port == 0 && ports.last > 0) {
    for (int each = ports.first; each <= ports.last; ++each)
      if (Result<Socket> socket = listenOn(address, each);
          socket.isOk() || socket.status().code() != StatusCode::Exhausted)
        return socket;
    return makeStatus(StatusCode::Exhausted, "cannot listen: no port of --ports={}-{} is free",
                      ports.first, ports.last);
  }
  ASSIGN_OR_RETURN(Addresses list, resolve(address, port, true));
  int error = 0;
  for (const addrinfo *at = list.get(); at != nullptr; at = at->ai_next) {
    Socket socket(
        ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    int on = 1;
    if (socket.isOpen() &&
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.fd(), SOMAXCONN) == 0)
      return socket;
    error = error == EADDRINUSE ? error : errno; // EADDRINUSE first, since the user can fix it
  }
  errno = error;
  StatusCode code = error == EADDRINUSE  ? StatusCode::Exhausted
                    : isExhausted(error) ? StatusCode::Io
                                         : StatusCode::Unavailable;
  return systemStatus(code, "listen on", endpoint(address, port));
}

/// Every round resolves the name again, since its entry may appear or change while this rank waits.
Result<Socket> connectTo(const std::string &address, int port, double seconds) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  Deadline deadline(seconds);
  while (true) {
    Result<Addresses> list = resolve(address, port, false);
    int error = 0;
    for (const addrinfo *at = list.isOk() ? list->get() : nullptr; at; at = at->ai_next) {
      Socket socket;
      error = connectOnce(*at, deadline, socket);
      if (error == 0) {
        setUp(socket.fd());
        return socket;
      }
    }
    if (list.status().code() == StatusCode::Exhausted)
      return list.status();
    if (isExhausted(error)) {
      errno = error;
      return systemStatus(StatusCode::Exhausted, "reach", endpoint(address, port));
    }
    if (deadline.isOver()) {
      RETURN_IF_ERROR(list.status());
      errno = error;
      return systemStatus(StatusCode::Unavailable, "reach", endpoint(address, port));
    }
    std::this_thread::sleep_for(kPause);
  }
}

Result<Socket> acceptOne(const Socket &listener) {
  while (true) {
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.isOpen()) {
      setUp(socket.fd());
      return socket;
    }
    int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK)
      return socket;
    // Linux requires a free descriptor even if no connection is waiting.
    pollfd waiting = {listener.fd(), POLLIN, 0};
    if (isExhausted(error) && ::poll(&waiting, 1, 0) == 0)
      return socket;
    if (error != EINTR && error != ECONNABORTED)
      return makeStatus(isExhausted(error) ? StatusCode::Exhausted : StatusCode::Unavailable,
                        "cannot accept a connection: {}", std::strerror(error));
  }
}

Result<Socket> makeWakeup() {
  Socket wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.isOpen())
    return makeStatus(StatusCode::Exhausted, "cannot create an eventfd: {}", std::strerror(errno));
  return wakeup;
}

void wake(const Socket &wakeup) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wakeup.fd(), &one, sizeof one);
}

void clearWakeup(const Socket &wakeup) {
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(wakeup.fd(), &count, sizeof count);
}

int portOf(const Socket &socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr *>(&address), &size) != 0)
    return -1;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6 *>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in *>(&address)->sin_port);
}

namespace {

std::string addressBy(int (*get)(int, sockaddr *, socklen_t *), const Socket &socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = {};
  if (get(socket.fd(), reinterpret_cast<sockaddr *>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr *>(&address), size, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "";
  return text;
}

} // namespace

std::string ownAddressOf(const Socket &socket) {
  return addressBy(
      [](int fd, sockaddr *to, socklen_t *size) { return ::getsockname(fd, to, size); }, socket);
}

std::string otherAddressOf(const Socket &socket) {
  return addressBy(
      [](int fd, sockaddr *to, socklen_t *size) { return ::getpeername(fd, to, size); }, socket);
}

std::string endpoint(const std::string &address, int port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

Status sendAll(const Socket &socket, const void *data, size_t bytes, double seconds) {
  return transferAll(socket, bytes, seconds, POLLOUT, [&](size_t at) {
    return ::send(socket.fd(), static_cast<const char *>(data) + at, bytes - at,
                  MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

Status receiveAll(const Socket &socket, void *data, size_t bytes, double seconds) {
  return transferAll(socket, bytes, seconds, POLLIN, [&](size_t at) {
    return ::recv(socket.fd(), static_cast<char *>(data) + at, bytes - at, MSG_DONTWAIT);
  });
}

} // namespace shardc
