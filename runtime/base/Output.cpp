#include "runtime/base/Output.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"

namespace shardc {

void prepareOutput() {
  // /dev/null is opened without write access to standard output, so that writes still fail and are
  // reported.
  constexpr int kModes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", kModes[fd]); // open() returns the lowest free number, which is fd
  std::signal(SIGXFSZ, SIG_IGN);
}

int finishOutput(std::string_view program, int status, bool isWritten) {
  isWritten = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && isWritten;
  if (isWritten)
    return status;
  printError("{}: error: cannot write to standard output\n", program);
  return status == 0 ? kFailureStatus : status;
}

} // namespace shardc
