// A job whose global batch size grows over the run has a plan for each size, in the order of the
// run. All of them keep the state in the same places, so one takes it over from the one before.
#pragma once

#include <span>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// The step of the run with which the plan's steps end; 0 if it has none.
int64_t lastStepOf(const Plan &plan);

/// Samples that a run takes in its first steps; `plans` are a job's, at least one.
int64_t samplesOfSteps(std::span<const Plan> plans, int64_t steps);

/// Of a job's plans, at least one, the one for the step that begins after so many samples.
size_t phaseAfter(std::span<const Plan> plans, int64_t samples);

/// InvalidInput where a plan cannot go on where the one before it ends: it continues at another
/// sample or step, or its state is another or lies elsewhere.
Status checkPhases(std::span<const Plan> plans);

} // namespace shardc::plan
