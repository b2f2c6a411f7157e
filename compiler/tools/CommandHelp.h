// Command-line reference of the programs, parsed from the output of `--help`. Manual pages and
// completions are generated from it, so they cannot name an option that a program lacks.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::tools {

/// An option, a flag or a positional argument.
struct HelpEntry {
  std::vector<std::string> names;   ///< `-o`, `--output`; the name of a positional argument
  std::string value;                ///< `TEXT`, `INT`; empty for a flag
  std::vector<std::string> choices; ///< allowed words
  std::string text;
  bool isFlag() const { return value.empty(); }
};

/// A program or a subcommand.
struct HelpPage {
  std::vector<std::string> words; ///< `shardc`, `ckpt`, `convert`
  std::string summary;
  std::string usage; ///< without `Usage:`
  std::vector<HelpEntry> positionals, options;
  std::vector<HelpPage> children;
};

/// Parses the output of `--help`. Children have only their last word and their summary.
/// InvalidInput if the text has another form.
Result<HelpPage> parseHelp(std::vector<std::string> words, const std::string &text);

/// Runs the program, and each of its subcommands, with `--help`.
Result<HelpPage> readHelp(const std::string &program);

/// Names from the tables, for completion.
struct CompletionWords {
  std::vector<std::string> settings;    ///< `model.num_layers=`, for --set
  std::vector<std::string> explainable; ///< for explain
  std::vector<std::string> groups;      ///< warning groups, for -W
};

/// The manual page (section 1) in man macros; subcommands are sections of it.
std::string manPage(const HelpPage &page, const std::string &version);

/// docs/commands.md: a section for each command of the programs.
std::string commandReference(const std::vector<HelpPage> &programs);

/// Completion scripts of the three shells, for all programs.
std::string bashCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words);
std::string zshCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words);
std::string fishCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words);

/// Writes man/man1/PROGRAM.1 for each program and the completions of all programs below the folder:
/// bash-completion/completions/shardc, zsh/site-functions/_shardc, fish/vendor_completions.d.
Status writeShare(const std::string &folder, const std::vector<std::string> &programs);

} // namespace shardc::tools
