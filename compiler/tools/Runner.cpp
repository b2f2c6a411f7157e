#include "compiler/tools/Runner.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>

#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {

std::string findRunner(const std::string &program) {
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    self = program;
  return (self.parent_path() / "shardc-run").string();
}

ExitStatus become(const std::string &program, std::vector<std::string> arguments) {
  std::vector<char *> argv = {const_cast<char *>(program.c_str())};
  for (std::string &argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  llvm::outs().flush();
  llvm::errs().flush();
  ::execvp(program.c_str(), argv.data());
  llvm::errs() << "shardc: error: cannot execute '" << program << "': " << std::strerror(errno)
               << "\n";
  return kRunFailed;
}

int makeTextFd(const std::string &text) {
  int fd = ::memfd_create("text", 0);
  for (size_t at = 0; fd >= 0 && at < text.size();) {
    ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return -1;
    at += static_cast<size_t>(written);
  }
  return fd < 0 || ::lseek(fd, 0, SEEK_SET) != 0 ? -1 : fd;
}

std::optional<std::string> pathOfText(const std::string &text) {
  int fd = makeTextFd(text);
  return fd >= 0 ? std::optional("/dev/fd/" + std::to_string(fd)) : std::nullopt;
}

} // namespace shardc::tools
