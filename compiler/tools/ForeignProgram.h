// Runs a program of the user's, such as a launch script, in a temporary folder of its own. Where
// the system allows namespaces, the program has no network, sees of the machine only its programs
// and libraries, and cannot write to it; otherwise it runs with the user's rights.
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

struct ForeignProgram {
  std::vector<std::string> command; ///< the first word is the path of a program
  /// Texts by path. Paths lie below the folder; the folders between are made. All may be executed.
  std::map<std::string, std::string> files;
  /// All that the program gets, besides SHARDC_FOLDER, which is the folder's path.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string workingFolder = "work";   ///< below the folder; made empty where no file is in it
  std::string resultFolder = "results"; ///< below the folder, and empty at the start
  unsigned secondsMax = 60;
  size_t outputBytesMax = size_t{1} << 20; ///< of the output, and of all results together
  bool closesOff = true;                   ///< where the system allows it
};

struct ForeignResult {
  int status = 0;          ///< of the program, or 128 and the signal that ended it
  std::string output;      ///< standard output and error, as they came
  bool isClosedOff = true; ///< false: it had the network, and the user's files
  std::string folder;      ///< its path while the program ran; it is gone
  std::map<std::string, std::string> results; ///< files of the result folder, by name
};

/// Runs the program with all processes that it starts to their end. Exhausted beyond a limit, where
/// they are killed (of one that is not closed off, its group of processes); Io or Unavailable where
/// it cannot be run.
Result<ForeignResult> runForeign(const ForeignProgram &program);

} // namespace shardc::tools
