// Writes a configuration as Megatron-LM's command line or Megatron-Bridge's overrides, so that a
// checked recipe can be run there. The output has the settings of the recipe, its family and
// presets, and what upstream needs; settings that upstream derives or adjusts itself are left out.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"

namespace shardc::upstream {

enum class ExportTarget : uint8_t { MegatronArgs, BridgeOverrides };

/// `Megatron-LM` or `Megatron-Bridge`.
llvm::StringRef targetName(ExportTarget target);

/// Says where upstream would fail or do otherwise: `fired` are the ids of the rules that the
/// configuration has met. Also what takes effect in one of the two only.
void judgeExport(const config::Config &config, const std::vector<std::string> &fired,
                 ExportTarget target, DiagEngine &diags);

/// A shell script that starts Megatron-LM.
std::string exportMegatronArgs(const config::Config &config, DiagEngine &diags);

/// One override in a line.
std::string exportBridgeOverrides(const config::Config &config, DiagEngine &diags);

/// Whether the export must write the option's value: the recipe, a family or a preset sets it, or
/// upstream needs it under FSDP.
bool isExported(const config::Config &config, config::Opt opt);
/// Whether Megatron-LM does not start without the option; a recipe may omit it.
bool isNeededByMegatron(config::Opt opt);
/// Whether the option says which model is trained, rather than how its steps are computed.
bool describesModel(const config::OptionInfo &option);

/// Whether shardc chooses the value when it compiles, which upstream cannot.
bool isOwnChoice(const config::Config &config, config::Opt opt);

/// A value as text for the shell (unquoted) or for an override.
std::string megatronText(const config::Value &value, const config::OptionType &type);
std::string overrideText(const config::Value &value, const config::OptionType &type);
/// Layers as a list of Python: `([0]*3+[1]*58)`.
std::string patternText(const config::Value::List &list);

} // namespace shardc::upstream
