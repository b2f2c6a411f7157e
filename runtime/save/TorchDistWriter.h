// What runs under DDP or the distributed optimizer save: Megatron's `torch_dist`, with the
// optimizer's state as Megatron's own optimizers of that kind ask for it.
#pragma once

#include "runtime/checkpoint/TorchDist.h"
#include "runtime/save/RunProgress.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// How the plan's layers are stacked.
checkpoint::TorchDistLayout torchDistLayout(const plan::Plan &plan);

/// Writes a slice of a parameter or moment. Weights whose masters are apart, and all under the
/// distributed optimizer, are written twice: the masters in the optimizer's state, and the model's
/// own, rounded to its type.
Status writeTorchDistSlice(const plan::Plan &plan, const checkpoint::TorchDistLayout &layout,
                           const checkpoint::ParamSlice &slice, const StatePiece &piece,
                           checkpoint::RankWriter &writer);

/// The common state, with the optimizer's groups if it is saved.
checkpoint::TorchDistCommon torchDistCommon(const plan::Plan &plan, const Progress &progress);

/// The objects that the first rank saves beside tensors and generator states.
Status writeTorchDistObjects(const plan::Plan &plan, const checkpoint::TorchDistLayout &layout,
                             const Progress &progress, checkpoint::RankWriter &writer);
/// The files beside the ranks'.
Status addTorchDistFiles(const plan::Plan &plan, const Progress &progress,
                         const checkpoint::SaveTarget &target);

} // namespace shardc::save
