// Maps Megatron-LM's flags and Megatron-Bridge's paths to options; import and export share this
// mapping. It comes from the columns of Options.def, and from UpstreamFlags.def for cases that do
// not fit the columns.
#pragma once

#include <functional>

#include "compiler/config/Config.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::upstream {

/// An option that a flag has to do with.
struct FlagEffect {
  config::Opt opt;
  bool negates = false; ///< the flag switches the option off
  llvm::StringRef fixed =
      {}; ///< recipe text of the value that the flag sets; empty if it takes one
};

/// The effects of a flag (`--lr`), under any of its names; empty if the option table does not have
/// it.
llvm::ArrayRef<FlagEffect> findFlag(llvm::StringRef flag);
/// The flag of the option table that is meant by a misspelt one, if that is nearly certain.
std::optional<llvm::StringRef> misspeltFlag(llvm::StringRef flag);
/// The flag's name in the option table, where it is another name of it.
llvm::StringRef canonicalFlag(llvm::StringRef flag);
/// Why the flag changes nothing in a recipe; empty if it may.
llvm::StringRef idleReason(llvm::StringRef flag);

/// Whether the flag, or the flag of an attribute, chooses data that a recipe cannot have.
bool choosesForeignData(llvm::StringRef flag);

/// The attribute of Megatron-LM's arguments that a flag sets: `--no-save-optim` sets no_save_optim.
std::string attributeOf(llvm::StringRef flag);
/// The flag that sets the attribute; empty if there is none. `given` becomes the attribute's value
/// if the flag is given: false for check_for_nan_in_loss_and_grad, which a `--no-...` flag clears.
llvm::StringRef flagOfAttribute(llvm::StringRef attribute, bool &given);
/// The options that a flag reaches and whose name in Bridge is the attribute's, in positive sense:
/// add_bias_linear for --disable-bias-linear.
llvm::ArrayRef<config::Opt> findAttribute(llvm::StringRef attribute);

/// The options of Bridge's path, `ddp.use_megatron_fsdp` or an older or aliased name of it.
llvm::SmallVector<config::Opt, 2> findBridgePath(llvm::StringRef path);

/// Whether the field of a dataset of Megatron-Bridge's, which has no counterpart, says which data
/// are read.
bool namesData(llvm::StringRef field);

/// An option's value on Megatron-LM's command line if its flag is not given.
struct CliDefault {
  config::Opt opt;
  llvm::StringRef value;
  /// Whether the value matters, given what else is set.
  bool (*matters)(const std::function<const config::Value *(config::Opt)> &get);
};
llvm::ArrayRef<CliDefault> cliDefaults();

/// Whether upstream pads the vocabulary of what is set, or may, since its size is not known.
bool mayPadVocabulary(const std::function<const config::Value *(config::Opt)> &get);

/// The width that Megatron-LM derives for a gated feed-forward layer: two thirds of four times the
/// model's width, in steps of 64.
constexpr int64_t swigluWidth(int64_t hidden) { return hidden * 8 / 3 / 64 * 64; }

} // namespace shardc::upstream
