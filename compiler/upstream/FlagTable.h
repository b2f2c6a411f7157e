// Maps Megatron-LM's flags and Megatron-Bridge's paths to options, for import and export. The
// mapping comes from the columns of Options.def, and from UpstreamFlags.def for cases that do not
// fit these columns.
#pragma once

#include "compiler/config/Config.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {

/// Names of upstream that need no more than a text; UpstreamFlags.def describes the kinds.
enum class NameKind : uint8_t {
  IdleFlag,
  DataFlag,
  DataField,
  FixedField,
  ConfigClass,
  ForeignModel,
  TrainingFlag,
  OffAtZero,
  FlagAlias,
  CheckpointArg,
  SpecialFlag,
  NeededFlag,
  NeededByFsdp,
  ForeignSection,
  OtherFlag
};
struct UpstreamName {
  NameKind kind;
  llvm::StringRef names, text; ///< names with blanks between them
};
llvm::ArrayRef<UpstreamName> upstreamNames();
/// Whether it is one of the words, which have blanks between them.
inline bool isOneOf(llvm::StringRef words, llvm::StringRef word) {
  return !word.empty() && llvm::is_contained(llvm::split(words, ' '), word);
}
/// The row of a name; null if there is none.
const UpstreamName *findName(NameKind kind, llvm::StringRef name);

/// One option that a flag sets.
struct FlagEffect {
  config::Opt opt;
  bool negates = false; ///< the flag switches the option off
  llvm::StringRef fixed =
      {}; ///< value that the flag sets, as in a recipe; empty if the flag has an argument
};

/// The options that a flag such as `--lr`, or another name of it, sets; empty if the flag is not in
/// the table.
llvm::ArrayRef<FlagEffect> findFlag(llvm::StringRef flag);
/// The known flag that `flag` most likely misspells; empty if that is not almost certain.
std::optional<llvm::StringRef> misspeltFlag(llvm::StringRef flag);
/// The flag's name in the option table; `flag` itself if it is not another name.
llvm::StringRef canonicalFlag(llvm::StringRef flag);
/// Whether a flag, or the flag of an attribute, selects data that recipes do not support.
bool choosesForeignData(llvm::StringRef flag);

/// The flag that sets an attribute of Megatron-LM's arguments; empty if there is none. `given`
/// becomes the attribute's value when the flag is present: false for
/// check_for_nan_in_loss_and_grad, which a `--no-...` flag clears.
llvm::StringRef flagOfAttribute(llvm::StringRef attribute, bool &given);
/// The options of Bridge's path, such as `ddp.use_megatron_fsdp`; older and alternative names are
/// also found.
llvm::SmallVector<config::Opt, 2> findBridgePath(llvm::StringRef path);

/// The value that Megatron-LM uses without the option's flag, with the other settings of `config`,
/// if it differs from the option's default; otherwise empty.
std::optional<config::Value> cliDefault(const config::Config &config, config::Opt opt);

/// Options whose flags set YaRN's options instead, if YaRN is used without multi-latent attention.
inline constexpr std::pair<config::Opt, config::Opt> kSharedWithYarn[] = {
    {config::Opt::ModelRotaryScalingFactor, config::Opt::ModelYarnRotaryScalingFactor},
    {config::Opt::ModelMscale, config::Opt::ModelYarnMscale},
    {config::Opt::ModelMscaleAllDim, config::Opt::ModelYarnMscaleAllDim}};

/// Whether upstream pads the vocabulary; also true if its size is unknown.
bool mayPadVocabulary(const config::Config &config);

/// Megatron-LM's default FFN size of a gated layer: 8/3 of the hidden size, rounded down to a
/// multiple of 64.
constexpr int64_t swigluWidth(int64_t hidden) { return hidden * 8 / 3 / 64 * 64; }

} // namespace shardc::upstream
