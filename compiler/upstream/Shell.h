// The commands of a launch script: those that its text shows, which shell_reader.py reads, or those
// that it has run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compiler/diag/Engine.h"

namespace shardc::upstream {

/// Why a part of a word is not known.
struct ShellUnknown {
  std::string shown; ///< what stands in the script: `$X`, `$(date)`
  SourceRange cause; ///< the loop, condition or function that sets it; not valid where nothing does
  std::set<std::string> flags; ///< those that it may contain, as far as the script says
};

/// A word of a command after expansion.
struct RanWord {
  std::string text; ///< with what stands in the script where a part is not known
  SourceRange range;
  std::shared_ptr<const ShellUnknown> unknown = nullptr; ///< null where all of it is known
};

struct RanCommand {
  std::vector<RanWord> words;
  std::vector<std::pair<std::string, RanWord>> environment; ///< assignments before it
  SourceRange range;
};

/// A variable that the script hands to its commands; no value where it is unset.
struct RanVariable {
  std::optional<RanWord> value;
  SourceRange range;
};

/// The final value of a variable.
struct RanArray {
  std::string name;
  bool isArray = false; ///< false: `words` is the one value of a plain variable
  std::vector<RanWord> words;
};

struct ShellRun {
  bool hasRun = false;              ///< a shell ran the script: there is no more to know
  std::vector<RanCommand> commands; ///< in order, also those that may not be reached
  std::vector<RanWord> directives;  ///< words of `#SBATCH` lines
  std::map<std::string, RanVariable> exported;
  std::vector<RanArray> arrays; ///< by first assignment
};

/// What shell_reader.py says of a script, as JSON. What it calls malformed is reported.
std::optional<ShellRun> shellRunOf(BufferId script, llvm::StringRef commands, DiagEngine &diags);

} // namespace shardc::upstream
