// Learning rates and weight decay as functions of what the schedule has counted: Megatron's
// OptimizerParamScheduler.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the schedule's attributes define no learning rate or weight decay.
const char *checkSchedule(const Attrs &attrs);

/// Learning rate of the next update, in fp64, after so many applied ones, or after so many samples
/// of theirs: the attributes are in the same unit.
double learningRate(const Attrs &attrs, int64_t counted);
/// The rate of parameters with a rate of their own (decoupled).
double decoupledRate(const Attrs &attrs, int64_t counted);
/// Weight decay of that update, in fp64; 0 where it does not change.
double weightDecay(const Attrs &attrs, int64_t counted);

} // namespace shardc::kernels::host
