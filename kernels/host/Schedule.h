// Learning rates and weight decay as functions of the updates applied so far: Megatron's
// OptimizerParamScheduler.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the schedule's attributes define no learning rate or weight decay.
const char *checkSchedule(const Attrs &attrs);

/// Learning rate of the update that follows `applied` updates, in fp64.
double learningRate(const Attrs &attrs, int64_t applied);
/// The same of parameters that have a rate of their own.
double decoupledRate(const Attrs &attrs, int64_t applied);
/// Weight decay of that update, in fp64; 0 where it does not change.
double weightDecay(const Attrs &attrs, int64_t applied);

} // namespace shardc::kernels::host
