// A process of Python that runs a script of ours, and the messages to and from it.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "runtime/base/Status.h"

namespace shardc::tokenize {

/// Ends with the object, by force if needed. Writing to a process that has ended raises SIGPIPE,
/// which the program has to ignore.
class PythonProcess {
public:
  /// Starts `python -c SCRIPT arguments...`; Unavailable if there is no such program.
  Status start(const std::string &python, const char *script,
               const std::vector<std::string> &arguments);
  PythonProcess() = default;
  PythonProcess(const PythonProcess &) = delete;
  PythonProcess &operator=(const PythonProcess &) = delete;
  ~PythonProcess();

  /// Sends a request in the form of the scripts: the count of the texts, their lengths, and the
  /// texts.
  Status ask(std::span<const std::string_view> texts);
  /// The next answer: its kind and its payload. Io, with how the process ended, if there is none.
  Result<char> readAnswer(std::string &payload);
  /// Ends the process, so that reads and writes fail; another thread may call it.
  void kill();

private:
  Status write(std::string_view bytes);
  Status readFully(char *out, size_t bytes);
  /// How the process ended, for which it waits.
  Status ended();

  std::string python_;
  std::atomic<pid_t> pid_ = -1;
  std::string request_;
  int input_ = -1, output_ = -1; ///< the process's standard input and output, this side of them
};

} // namespace shardc::tokenize
