// How a job divides its batches, in one place for the verifier, checks before a run and its data.
// Evaluations have sizes of their own where the job says so.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Sequences that a rank takes at a time, and that all ranks take in a step or in a round of an
/// evaluation.
struct BatchSizes {
  int64_t micro = 1, global = 1;
};

inline BatchSizes batchSizesOf(const Job &job, bool isEval) {
  BatchSizes sizes{job.train.microBatchSize, job.train.globalBatchSize};
  if (!isEval && job.derived.stepSamples > 0) // a batch that grows has not come to the whole yet
    sizes.global = job.derived.stepSamples;
  if (isEval && job.validation.evalMicroBatchSize > 0)
    sizes.micro = job.validation.evalMicroBatchSize;
  if (isEval && job.validation.evalGlobalBatchSize > 0)
    sizes.global = job.validation.evalGlobalBatchSize;
  return sizes;
}

/// Microbatches of a step, or of an evaluation, on each rank; 0 where the sizes do not divide,
/// below 0 where their number is too large. An evaluation of all data has as many as the plan was
/// compiled for.
inline int64_t microbatchesOf(const Plan &plan, bool isEval) {
  const Job &job = plan.job;
  if (isEval && job.validation.fullValidation)
    return job.derived.evalMicrobatches;
  BatchSizes sizes = batchSizesOf(job, isEval);
  int64_t round = 0, microbatches = 0;
  if (sizes.micro <= 0 ||
      __builtin_mul_overflow(sizes.micro, plan.groupSize(groupOfKind(plan, GroupKind::Data)),
                             &round) ||
      round <= 0 || sizes.global % round != 0)
    return 0;
  microbatches = sizes.global / round;
  if (isEval && __builtin_mul_overflow(microbatches, job.validation.evalIters, &microbatches))
    return -1;
  return microbatches;
}

} // namespace shardc::plan
