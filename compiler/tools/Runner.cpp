#include "compiler/tools/Runner.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/Io.h"
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

void passOn(std::vector<std::string> &arguments, const std::string &option,
            const std::string &value) {
  passOnFlag(arguments, option + "=" + value, !value.empty());
}

void passOn(std::vector<std::string> &arguments, const std::string &option, int64_t value) {
  passOnFlag(arguments, option + "=" + std::to_string(value), value > 0);
}

void passOnFlag(std::vector<std::string> &arguments, const std::string &flag, bool isGiven) {
  if (isGiven)
    arguments.push_back(flag);
}

int makeTextFd(const std::string &text) {
  int fd = ::memfd_create("text", 0);
  bool isWritten = fd >= 0 && writeFully(fd, text) && ::lseek(fd, 0, SEEK_SET) == 0;
  return isWritten ? fd : -1;
}

std::optional<std::string> pathOfText(const std::string &text) {
  int fd = makeTextFd(text);
  return fd >= 0 ? std::optional("/dev/fd/" + std::to_string(fd)) : std::nullopt;
}

} // namespace shardc::tools
