// The checkpoint of runs under PyTorch's own FSDP2: a plain PyTorch DCP checkpoint (`torch_dcp`),
// with the names that torch.distributed.checkpoint.state_dict gives a model and its optimizer.
#pragma once

#include "runtime/save/RunProgress.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Writes a slice as `model.<name>` or `optimizer.state.<name>.<moment>`; gated layers are not
/// split.
Status writeTorchDcpSlice(const checkpoint::ParamSlice &slice, checkpoint::RankWriter &writer);

/// Run state, and if the optimizer is saved its groups and each parameter's count of updates.
Status writeTorchDcpObjects(const plan::Plan &plan, const Progress &progress,
                            checkpoint::RankWriter &writer);

} // namespace shardc::save
