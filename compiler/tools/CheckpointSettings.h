// Reads options that a recipe leaves open from the checkpoint of its run.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Looks up the checkpoint as the run would: checkpoint.load, else
/// checkpoint.pretrained_checkpoint, at checkpoint.ckpt_step or the latest step. Each folder is
/// read once per reader.
config::CheckpointReader makeCheckpointReader();

} // namespace shardc::tools
