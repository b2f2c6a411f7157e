// The `config.json` of a run's model, derived from the effective options that the run saved beside
// its checkpoint. An export needs it if the model did not come from a hub.
#pragma once

#include <string>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/HfModel.h"

namespace shardc::checkpoint {

inline constexpr const char *kRunConfigFile = "run_config.yaml";

/// The text of `config.json` for a checkpoint. It is of the architecture of HfFields.def that
/// computes the same as the run; the text is read like an import to verify this. `torchType` is the
/// type of the written weights. NotFound if the run's options are missing; InvalidInput, with the
/// options that differ, if no architecture fits.
Result<std::string> deriveHfConfig(const CheckpointReader &checkpoint,
                                   const std::string &torchType);

/// Checks that the model of a `config.json` computes the same as the run; ok if the run's options
/// are missing. InvalidInput with the options that differ, or with the file's refused settings.
Status checkHfConfig(const CheckpointReader &checkpoint, const HfConfig &config);

/// The type in which the run computed: fp32, bf16 or fp16. Nothing if its options are missing or do
/// not set it. InvalidInput if they cannot be read.
Result<std::optional<Element>> computeTypeOf(const CheckpointReader &checkpoint);

} // namespace shardc::checkpoint
