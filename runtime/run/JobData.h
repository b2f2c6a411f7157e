// The data of a job: reads the plan's dataset options, opens the datasets, and feeds
// microbatches.
#pragma once

#include <memory>

#include "runtime/plan/Plan.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

/// Opens the training data, and the validation data if the job evaluates. Errors name the path or
/// option.
Result<std::unique_ptr<BatchSource>> openJobData(const plan::Plan &plan);

} // namespace shardc::run
