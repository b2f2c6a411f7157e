// Names that other programs use for options and sections, so that users need not know those of
// shardc: `num_hidden_layers` is Hugging Face's name of `model.num_layers`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::config {

/// What to write instead of a name if it has one of some values.
struct ForeignValue {
  llvm::StringRef words; ///< as in ForeignNames.def
  llvm::StringRef advice;
};

/// A name of another program.
struct ForeignName {
  std::string name; ///< with underscores, without leading hyphens; `vllm_*`: all that begin so
  llvm::StringRef program;
  std::optional<Opt> option;        ///< the option with the same values
  std::optional<Section> section;   ///< the section of that name
  std::string advice;               ///< what to write instead, if neither is set
  std::string other; ///< what to write instead of other values; empty if the advice is for all
  std::vector<ForeignValue> values; ///< the first that matches counts
};

/// All names; those of ForeignNames.def come first. Excludes names that our own options have with
/// the same meaning.
llvm::ArrayRef<ForeignName> foreignNames();

/// A flag or field with underscores and without leading hyphens: no_save_optim for
/// `--no-save-optim`.
std::string foldName(llvm::StringRef name);

/// Looks up a name with exactly these sections before it. Null if no program has it.
const ForeignName *findForeignPath(llvm::StringRef path);

/// Looks up another program's name of an option, such as `num_hidden_layers` or
/// `--num-hidden-layers`, also with sections before it. Null if no program has it.
const ForeignName *findForeignName(llvm::StringRef path);

/// Looks up another program's name of a section.
const ForeignName *findForeignSection(llvm::StringRef name);

/// The name that sets the option inside its section. For the kind of a section, this is an alias.
llvm::StringRef nameInSection(const OptionInfo &option);

/// A sentence: `'num_hidden_layers' is Hugging Face's name of 'model.num_layers'`, or what to write
/// instead.
std::string describeForeignName(const ForeignName &foreign);

} // namespace shardc::config
