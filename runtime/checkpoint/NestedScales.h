// Scales in 8 bits of a whole weight (DType::NF4x512). They depend on all of its numbers, so a rank
// with a part of the weight reads all of it.
#pragma once

#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Status.h"
#include "runtime/checkpoint/Box.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/plan/Plan.h"

namespace shardc::checkpoint {

/// The scales of a weight: those of a Hugging Face model that has such, otherwise computed. As in
/// such a model, queries, keys, values, gate and up projection are weights of their own.
Result<NestedScales> nestedScales(const ParamSource &source, const plan::Plan &plan,
                                  const plan::Param &param);

} // namespace shardc::checkpoint
