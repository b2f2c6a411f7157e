// Names that other programs have for options and sections, so that nobody has to know ours first:
// `num_hidden_layers` is Hugging Face's name of `model.num_layers`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::config {

/// A name of another program.
struct ForeignName {
  std::string name; ///< with underscores, without leading hyphens
  llvm::StringRef program;
  std::optional<Opt> option;      ///< that takes the same values
  std::optional<Section> section; ///< that it is the name of
  std::string advice;             ///< what to write if it is neither
};

/// All names, those of ForeignNames.def first. None is the name of an option with the same meaning.
llvm::ArrayRef<ForeignName> foreignNames();

/// The meaning of an option's name in other programs: `num_hidden_layers`, `--num-hidden-layers`.
/// Null if no program has it.
const ForeignName *findForeignName(llvm::StringRef name);

/// The same for the name of a section.
const ForeignName *findForeignSection(llvm::StringRef name);

/// The option's name inside its section, an alias for the kind of the section.
llvm::StringRef nameInSection(const OptionInfo &option);

/// `'num_hidden_layers' is Hugging Face's name of 'model.num_layers'`, or what to write instead.
std::string describeForeignName(const ForeignName &foreign);

} // namespace shardc::config
