// Reads launch scripts of the shell as far as a script's text decides what it does: assignments,
// arrays, quotes, defaults, arithmetic. What depends on more (conditions, loops, functions, the
// output of programs, variables that the script never sets) is unknown, and stays so in all that
// follows from it. The reader starts no program and reads no other file.
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

/// What the shell that would run a script has set.
struct ShellSetting {
  std::map<std::string, std::string> variables;      ///< `1` is the first argument
  std::optional<std::vector<std::string>> arguments; ///< all of them, if they are known
};

/// Reads a script. Syntax errors are reported, and end it.
std::optional<ShellRun> readShell(BufferId script, const ShellSetting &setting, DiagEngine &diags);

} // namespace shardc::upstream
