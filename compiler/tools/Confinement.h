// The first process of a user's program: a new image of this program, so that nothing of the user's
// environment, memory or open files is left in it. It closes itself off, limits itself, starts the
// program, and waits for all processes that the program leaves behind.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace shardc::tools {

/// What the first process is asked to do.
struct Confinement {
  std::string folder;        ///< the program sees a copy in memory at the same path
  std::string workingFolder; ///< relative to `folder`
  std::string resultFolder;  ///< relative to `folder`; its files are copied back
  unsigned secondsMax = 60;  ///< of processor time
  bool closesOff = true;     ///< namespaces, no privileges, and a filter of system calls
  std::vector<std::string> command, environment;
};

/// The descriptor on which the first process says that the program is about to start.
inline constexpr int kReadyDescriptor = 3;

/// User and group of a sandboxed program that root runs, and of its files.
inline constexpr uid_t kNobody = 65534;

/// The exit status of a process that waitpid reports, or 128 plus the number of its signal.
int statusOf(int waited);

/// The words in the form that execve needs.
std::vector<char *> pointersOf(std::vector<std::string> &words);

/// The arguments with which the first process is started.
std::vector<std::string> argumentsOf(const Confinement &confinement);

/// Acts as the first process if the arguments are those of one, and returns the exit status. Must
/// be called first by every program that calls runForeign.
std::optional<int> runConfined(int argc, char **argv);

} // namespace shardc::tools
