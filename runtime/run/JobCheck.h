// Compares the sizes that a plan's program consumes with those of the plan's job, for which the
// data are opened.
#pragma once

#include <vector>

#include "runtime/base/Report.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

/// All differences in batches, microbatches, steps and evaluations.
std::vector<Report> checkJob(const plan::Plan &plan);

} // namespace shardc::run
