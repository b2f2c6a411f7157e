// What runs under DDP or the distributed optimizer save: Megatron's `torch_dist` with fully
// reshardable optimizer state.
#pragma once

#include "runtime/checkpoint/TorchDist.h"
#include "runtime/exec/SaveLayout.h"
#include "runtime/exec/SaveState.h"

namespace shardc::exec {

/// How the plan's layers are stacked.
checkpoint::TorchDistLayout torchDistLayout(const plan::Plan &plan);

/// Writes a slice of a parameter or moment. Weights whose masters are apart are written twice: the
/// masters in the optimizer's state, and the model's own, rounded to its type.
Status writeTorchDistSlice(const plan::Plan &plan, const checkpoint::TorchDistLayout &layout,
                           const checkpoint::ParamSlice &slice, const StatePiece &piece,
                           checkpoint::RankWriter &writer);

/// The common state, with the optimizer's groups if it is saved.
checkpoint::BytesItem torchDistCommon(const plan::Plan &plan, const Progress &progress);

} // namespace shardc::exec
