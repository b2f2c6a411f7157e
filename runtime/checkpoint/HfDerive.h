// Derives the `config.json` of a run's model from the effective options that the run saved with its
// checkpoint. An export needs it if the model did not come from a hub.
#pragma once

#include <string>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/HfModel.h"

namespace shardc::checkpoint {

/// The text of `config.json` for a checkpoint. It uses an architecture of HfFields.def that
/// computes the same as the run; to verify this, the text is read again as by an import.
/// `torchType` is the type of the written weights. NotFound if the run's options are missing;
/// InvalidInput, with the options that differ, if no architecture fits.
Result<std::string> deriveHfConfig(const CheckpointReader &checkpoint,
                                   const std::string &torchType);

/// Checks that the model of a `config.json` computes the same as the run; ok if the run's options
/// are missing. InvalidInput with the options that differ, or with the settings of the file that
/// are refused.
Status checkHfConfig(const CheckpointReader &checkpoint, const HfConfig &config);

/// The type in which the run computed: fp32, bf16 or fp16. Nothing if its options are missing or do
/// not set the type. InvalidInput if they cannot be read.
Result<std::optional<Element>> computeTypeOf(const CheckpointReader &checkpoint);

} // namespace shardc::checkpoint
