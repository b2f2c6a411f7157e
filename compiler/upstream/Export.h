// Writes a configuration as Megatron-LM's command line or as Megatron-Bridge's overrides, to run a
// checked recipe there. The output contains the settings of the recipe, its family and its presets,
// and settings that upstream requires. Settings that upstream derives itself are left out.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"

namespace shardc::upstream {

enum class ExportTarget : uint8_t { MegatronArgs, BridgeOverrides };

/// Returns `Megatron-LM` or `Megatron-Bridge`.
llvm::StringRef targetName(ExportTarget target);

/// Reports where upstream would fail or behave differently. `fired` are the ids of the rules that
/// apply to the configuration. Also reports options that only one of the two targets supports.
void judgeExport(const config::Config &config, const std::vector<std::string> &fired,
                 ExportTarget target, DiagEngine &diags);

/// Writes a shell script that starts Megatron-LM.
std::string exportMegatronArgs(const config::Config &config, DiagEngine &diags);

/// Writes Hydra overrides, one per line.
std::string exportBridgeOverrides(const config::Config &config, DiagEngine &diags);

/// Whether the export must contain the option: the recipe, a family or a preset sets it, or
/// upstream requires it for FSDP.
bool isExported(const config::Config &config, config::Opt opt);
/// Whether Megatron-LM requires the option to start; in a recipe it may be unset.
bool isNeededByMegatron(config::Opt opt);
/// Whether the option defines the model, not only how its training steps are computed.
bool describesModel(const config::OptionInfo &option);

/// Whether shardc chooses the value during compilation; upstream cannot make this choice.
bool isOwnChoice(const config::Config &config, config::Opt opt);

/// A value as unquoted text for the shell (megatronText) or as text of an override (overrideText).
std::string megatronText(const config::Value &value, const config::OptionType &type);
std::string overrideText(const config::Value &value, const config::OptionType &type);
/// A list with one number per layer as Python: `([0]*3+[1]*58)`. A list of one number n means every
/// n-th layer, and is written as the number.
std::string patternText(const config::Value::List &list);

} // namespace shardc::upstream
