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

/// The options that a recipe of this model has, named by the last segments of their paths, as runs
/// save theirs; Megatron's own names of some beside them. HfSettingRefused with the field and its
/// value for what no recipe computes. `biases` are those that the file says, or the tensors;
/// `faults` receives each field that is refused, if not null.
Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 HfFaults *faults = nullptr);

} // namespace shardc::checkpoint
