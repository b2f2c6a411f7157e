// The `config.json` of a run's model, made of the effective options that the run saved beside its
// checkpoint: what an export needs where the model did not come from a hub.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

inline constexpr const char *kRunConfigFile = "run_config.yaml";

/// The text of `config.json` for the checkpoint in `folder`: of the llama, qwen2 or qwen3 family or
/// GPT-2, whichever computes what the run computes. `torchType` is what the weights are written as.
/// NotFound if the run's options are not there, InvalidInput with what stands against it if no
/// family fits.
Result<std::string> deriveHfConfig(const std::string &folder, const std::string &torchType);

} // namespace shardc::checkpoint
