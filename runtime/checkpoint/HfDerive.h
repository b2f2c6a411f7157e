// The `config.json` of a run's model, derived from the effective options that the run saved beside
// its checkpoint. An export needs it if the model did not come from a hub.
#pragma once

#include <string>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/HfModel.h"

namespace shardc::checkpoint {

inline constexpr const char *kRunConfigFile = "run_config.yaml";

/// The text of `config.json` for a checkpoint: of the architecture of HfFields.def that computes
/// what the run computes, which is made sure by reading it as an import does. `torchType` is what
/// the weights are written as. NotFound if the run's options are not there, InvalidInput with the
/// options that differ if no architecture fits.
Result<std::string> deriveHfConfig(const CheckpointReader &checkpoint,
                                   const std::string &torchType);

/// Whether the model of a `config.json` computes what the run computes; true where the run's
/// options are not there. InvalidInput with the options that differ, or with what of the file is
/// refused.
Status checkHfConfig(const CheckpointReader &checkpoint, const HfConfig &config);

/// The type in which the run computed: fp32, bf16 or fp16. Nothing if its options are missing or do
/// not set it. InvalidInput if they cannot be read.
Result<std::optional<Element>> computeTypeOf(const CheckpointReader &checkpoint);

} // namespace shardc::checkpoint
