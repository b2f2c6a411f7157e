// The commands of a launch script, either as shell_reader.py reads them from the text or as
// recorded when the script ran.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compiler/diag/Engine.h"

namespace shardc::upstream {

/// Why a part of a word is unknown.
struct ShellUnknown {
  std::string shown; ///< the part's text in the script: `$X`, `$(date)`
  SourceRange cause; ///< the loop, condition or function that sets it; invalid if there is none
  std::set<std::string> flags; ///< flags that the part may contain, as far as the script shows
};

/// A word of a command after expansion by the shell.
struct RanWord {
  std::string text; ///< an unknown part is replaced by its text in the script
  SourceRange range;
  std::shared_ptr<const ShellUnknown> unknown = nullptr; ///< null if the whole word is known
};

/// Variables exported to commands; without a value if the script unsets them.
using Exports = std::map<std::string, std::optional<RanWord>>;

struct RanCommand {
  std::vector<RanWord> words;
  Exports environment; ///< variables that are exported or assigned before the command
  SourceRange range;
};

struct ShellRun {
  bool hasRun = false;                ///< a shell ran the script, so all is known
  std::string text;                   ///< of the script
  std::vector<RanCommand> commands;   ///< in order, including commands that may not be reached
  std::vector<RanWord> directives;    ///< words of `#SBATCH` lines
  Exports exported;                   ///< at its end
  int64_t nodes = 0, gpusPerNode = 0; ///< that the user names; 0 if not
  std::map<std::string, std::string> files; ///< texts of files beside the script, by name
};

bool isFlag(llvm::StringRef word);
/// Whether a word, or one of several, is a flag that the tables have.
bool isKnownFlag(llvm::StringRef word);
bool hasFlag(const std::vector<RanWord> &words);

/// Splits words that were quoted by mistake, such as `"--lr 3e-4"`, and removes quotes inside
/// quotes.
std::vector<RanWord> cleanWords(const std::vector<RanWord> &words);

/// The text with asterisks in the place of each value of a variable that has the name of a secret.
std::string withoutSecretsOf(const std::vector<std::pair<std::string, std::string>> &variables,
                             std::string text);

/// What a script without a launch of Megatron-LM does instead.
std::string whyNoLaunch(const ShellRun &run);

/// What says that a variable is empty, where a script writes one as the value of a flag.
std::string emptyVariable(const ShellRun &run, llvm::StringRef flag);

/// Converts the JSON output of shell_reader.py. Reports an error and returns empty if the script is
/// malformed.
std::optional<ShellRun> shellRunOf(BufferId script, llvm::StringRef commands, DiagEngine &diags);

} // namespace shardc::upstream
