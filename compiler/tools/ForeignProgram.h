// Runs a user's program, such as a launch script, in a temporary folder and in a sandbox: it has no
// network, sees only installed programs and libraries, and cannot write outside the folder.
//
//   ForeignProgram program;
//   program.command = {"/bin/bash", "main.sh"};
//   program.files["main.sh"] = text;
//   Result<ForeignResult> done = runForeign(program);
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::tools {

/// The program to run, its files and its limits.
struct ForeignProgram {
  std::vector<std::string> command; ///< the first word is a program's path
  /// File contents by relative path; parent folders are created. All files are executable.
  std::map<std::string, std::string> files;
  /// The complete environment; SHARDC_FOLDER, the path of the folder, is added.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string workingFolder = "work"; ///< relative; created empty unless `files` has entries in it
  std::string resultFolder = "results"; ///< relative; empty at the start
  unsigned secondsMax = 60;
  /// Limit of the output, and of all result files together.
  size_t outputBytesMax = size_t{1} << 20;
  bool closesOff = true; ///< false: without a sandbox, with the user's rights
};

/// How the program ended and what it left.
struct ForeignResult {
  int status = 0;                             ///< exit status, or 128 plus the number of the signal
  std::string output;                         ///< standard output and error, interleaved
  std::string folder;                         ///< the path while the program ran; already removed
  std::map<std::string, std::string> results; ///< contents of the result folder, by name
};

/// Ends the line that announces a program without a sandbox.
inline constexpr const char *kUnconfinedWords = ", unconfined: with your files and the network";

/// Runs the program and waits for all processes that it starts. Exhausted if a limit is exceeded;
/// the processes are then killed. Unavailable if the system does not support the sandbox, in which
/// case nothing is run; Io or Unavailable if the program cannot be started.
Result<ForeignResult> runForeign(const ForeignProgram &program);

} // namespace shardc::tools
