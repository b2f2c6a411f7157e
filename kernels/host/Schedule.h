// The learning rate as a function of the updates applied so far: Megatron's
// OptimizerParamScheduler.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the schedule's attributes define no learning rate.
const char *checkSchedule(const Attrs &attrs);

/// Learning rate of the update that follows `applied` updates, in fp64.
double learningRate(const Attrs &attrs, int64_t applied);

} // namespace shardc::kernels::host
