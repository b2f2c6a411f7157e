// A Python process that runs one of our scripts, and the messages to and from it.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc::tokenize {

/// The process ends with the object, by force if necessary. Writing to a process that has ended
/// raises SIGPIPE, which the program must ignore.
class PythonProcess {
public:
  /// Starts `python -I -c SCRIPT arguments...` with the environment variables that Python needs, as
  /// they were before the recipe set any. Unavailable if there is no such program.
  Status start(const std::string &python, const char *script,
               const std::vector<std::string> &arguments);
  PythonProcess() = default;
  PythonProcess(const PythonProcess &) = delete;
  PythonProcess &operator=(const PythonProcess &) = delete;
  ~PythonProcess();

  /// Sends a request in the format of the scripts: the number of texts, their lengths, and the
  /// texts.
  Status ask(std::span<const std::string_view> texts);
  /// Reads the next answer: returns its kind and sets its payload. Io, with how the process ended,
  /// if there is none.
  Result<char> readAnswer(std::string &payload);
  /// The error for an answer that is none to what was asked. `name`: the file that is read.
  Status refusal(char kind, const std::string &answer, const std::string &name) const;
  /// Ends the process, so that reads and writes fail. Another thread may call it.
  void kill();

private:
  Status readFully(char *out, size_t bytes);
  /// Waits until the process has ended, and returns how it ended.
  Status ended();

  std::string python_;
  std::atomic<pid_t> pid_ = -1;
  std::string request_;
  Descriptor input_, output_; ///< our ends of its standard input and output
};

} // namespace shardc::tokenize
