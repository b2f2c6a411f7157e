// Reads the values of options that a recipe leaves open from the checkpoint of its run.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Creates a reader that looks up the checkpoint as the run would: checkpoint.load, otherwise
/// checkpoint.pretrained_checkpoint, at checkpoint.ckpt_step or the latest step. A reader reads
/// each folder once.
config::CheckpointReader makeCheckpointReader();

} // namespace shardc::tools
