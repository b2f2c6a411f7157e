// Learning rate and weight decay as functions of the schedule's counter, as in Megatron's
// OptimizerParamScheduler.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the schedule's attributes define no learning rate or weight decay.
const char *checkSchedule(const Attrs &attrs);

/// The learning rate of the next update, in fp64, after `counted` applied updates or after the
/// samples of these updates. Attributes use the same unit.
double learningRate(const Attrs &attrs, int64_t counted);
/// The learning rate of decoupled parameters, which have their own.
double decoupledRate(const Attrs &attrs, int64_t counted);
/// The weight decay of the next update, in fp64; 0 if it does not change.
double weightDecay(const Attrs &attrs, int64_t counted);

} // namespace shardc::kernels::host
