// Compares what a plan's program consumes with the job that the plan carries: its data are opened
// for the job's sizes.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Every difference in batches, microbatches, steps and evaluations, one sentence each.
std::vector<std::string> checkJob(const plan::Plan &plan);

} // namespace shardc::exec
