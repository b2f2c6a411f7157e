// The data of a job: reads the plan's dataset options, opens the datasets, and feeds
// microbatches.
#pragma once

#include <memory>

#include "runtime/plan/Plan.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

/// The data of a job, for one of its plans at a time.
class JobSource : public BatchSource {
public:
  /// The steps are now those of another plan of the job.
  virtual Status turnTo(const plan::Plan &plan) = 0;
};

/// Opens the training data, and the validation data if the job evaluates. Errors name the path or
/// option.
Result<std::unique_ptr<JobSource>> openJobData(const plan::Plan &plan);

} // namespace shardc::run
