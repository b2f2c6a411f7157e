// Converts the settings of a Hugging Face `config.json` that affect the model's computation to
// options of a recipe. They do not follow from shapes of tensors, so an import stores them with the
// weights, and a run compares its recipe with them.
#pragma once

#include <string>
#include <string_view>

#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// The field with the activation function of feed-forward layers; null if the architecture always
/// uses the same one.
const char *hfActivationField(HfArch arch);

/// The options of a recipe for this model. Names are the last segments of option paths, as runs
/// save them; some also occur under Megatron's own names. HfSettingRefused, with field and value,
/// for settings that no recipe supports. `biases` are those that the file or the tensors have.
/// `faults`, if not null, receives each refused field.
Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 HfFaults *faults = nullptr);

} // namespace shardc::checkpoint
