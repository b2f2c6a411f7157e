// The settings in a Hugging Face `config.json` that determine how its model computes, as options of
// a recipe. Shapes of tensors do not show them, so an import keeps them with the weights, and a run
// compares its recipe with them.
#pragma once

#include <string>
#include <string_view>

#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// The field that names the function of feed-forward layers; null where they always have the same.
const char *hfActivationField(HfArch arch);

/// The options of a recipe for this model, named by the last segments of their paths, as runs save
/// them, with Megatron's own names of some beside them. HfSettingRefused, with the field and its
/// value, for settings that no recipe supports. `biases` are those that the file or the tensors
/// show; `faults`, if not null, receives each refused field.
Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 HfFaults *faults = nullptr);

} // namespace shardc::checkpoint
