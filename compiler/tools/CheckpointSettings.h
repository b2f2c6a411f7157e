// Reads from a run's checkpoint the options that its recipe leaves to it.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Looks where the run would: in checkpoint.load, or else checkpoint.pretrained_checkpoint, for
/// checkpoint.ckpt_step or the latest step. Each folder is read once, as long as the result lives.
config::CheckpointReader makeCheckpointReader();

} // namespace shardc::tools
