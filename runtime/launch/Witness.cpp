#include "runtime/launch/Witness.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/EndSignals.h"

namespace shardc::launch {
namespace {

ssize_t readByte(int fd) {
  char byte = 0;
  ssize_t got = 0;
  do
    got = ::read(fd, &byte, 1);
  while (got < 0 && errno == EINTR);
  return got;
}

/// Waits for the end of the supervisor and does nothing else. Signals that end the run do not
/// concern it.
[[noreturn]] void watch(int end, const std::function<void()> &emit) {
  for (int number : endSignals())
    ::signal(number, SIG_IGN);
  if (readByte(end) == 0)
    emit();
  ::_exit(0);
}

} // namespace

Status Witness::start(const std::function<void()> &emit) {
  int ends[2] = {-1, -1};
  pid_t child = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? ::fork() : -1;
  Socket own(ends[0]), other(ends[1]);
  if (child < 0)
    return makeStatus(StatusCode::Exhausted, "cannot start a process: {}", std::strerror(errno));
  if (child == 0) { // its child has no parent, so that this process waits only for ranks
    own.close();
    if (::fork() == 0)
      watch(other.fd(), emit);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  end_ = std::move(own);
  return Status::ok();
}

Witness::~Witness() {
  if (!end_.isOpen())
    return;
  if (::send(end_.fd(), "", 1, MSG_NOSIGNAL) == 1)
    readByte(end_.fd()); // returns once the witness is gone
}

} // namespace shardc::launch
