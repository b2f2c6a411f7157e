// Values derived from a job's options, shared by passes, verifier, runs and checkpoints: batch
// sizes, loss scaling, skipped steps, and the plans of a job whose batch size grows.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/ParseNumber.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- batches; an evaluation may have sizes of its own ----

/// Batch sizes in sequences: `micro` per rank and microbatch, `global` over all ranks per step, or
/// per iteration of an evaluation.
struct BatchSizes {
  int64_t micro = 1, global = 1;
};

/// The sizes of training or of evaluations, which use those of training unless the job sets others.
inline BatchSizes batchSizesOf(const Job &job, bool isEval) {
  BatchSizes sizes{job.train.microBatchSize, job.train.globalBatchSize};
  if (!isEval && job.derived.stepSamples > 0) // during batch-size rampup
    sizes.global = job.derived.stepSamples;
  if (isEval && job.validation.evalMicroBatchSize > 0)
    sizes.micro = job.validation.evalMicroBatchSize;
  if (isEval && job.validation.evalGlobalBatchSize > 0)
    sizes.global = job.validation.evalGlobalBatchSize;
  return sizes;
}

/// Microbatches per rank of a step or of an evaluation; 0 if the sizes do not divide, negative if
/// the number overflows. A full validation uses the number for which the plan was compiled.
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

// ---- experts ----

/// Whether the parameter belongs to experts that are sharded by expert parallelism. Megatron keeps
/// these in a separate optimizer.
inline bool isExpertParallel(const Job &job, const Param &param) {
  return param.isStacked() && job.model.expertModelParallelSize > 1;
}

// ---- loss scaling ----

/// How the loss is scaled; in the order of the words of attribute `scaling`.
enum class Scaling : uint8_t { None, Constant, Dynamic };

/// A constant scale is allowed with any type; fp16 without one uses dynamic scaling.
inline Scaling scalingOf(const Job &job) {
  if (job.optimizer.lossScale > 0)
    return Scaling::Constant;
  return job.model.fp16 ? Scaling::Dynamic : Scaling::None;
}

/// The loss scale of a run that loads no checkpoint.
inline double firstLossScale(const Job &job) {
  switch (scalingOf(job)) {
  case Scaling::None:
    return 1.0;
  case Scaling::Constant:
    return job.optimizer.lossScale;
  case Scaling::Dynamic:
    return job.optimizer.initialLossScale;
  }
  return 1.0;
}

// ---- skipped steps: their samples count as consumed, but nothing is computed ----

/// The steps of `train.iterations_to_skip`, ascending and unique, counted from 1. Nothing if an
/// entry is not a whole number.
inline std::optional<std::vector<int64_t>> skippedSteps(const Job &job) {
  std::vector<int64_t> steps;
  for (std::string_view text : job.train.iterationsToSkip) {
    int64_t step = 0;
    if (!parseNumber(text, step))
      return std::nullopt;
    steps.push_back(step);
  }
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

/// How many of these steps are in (begin, end].
inline int64_t countSkipped(const std::vector<int64_t> &steps, int64_t begin, int64_t end) {
  auto upTo = [&](int64_t step) { return std::ranges::upper_bound(steps, step) - steps.begin(); };
  return std::max<int64_t>(upTo(end) - upTo(begin), 0);
}

// ---- batch-size rampup: a job has one plan per size, in the order of the run; all of them keep
// the state at the same addresses ----

/// The number of the last step that this plan executes; 0 if it executes none.
int64_t lastStepOf(const Plan &plan);

/// Samples that a run consumes in its first `steps` steps. `plans` are the job's plans, at least
/// one.
int64_t samplesOfSteps(std::span<const Plan> plans, int64_t steps);

/// Index of the plan for the step that begins after `samples` consumed samples.
size_t phaseAfter(std::span<const Plan> plans, int64_t samples);

/// InvalidInput if a plan cannot continue where its predecessor ends: its first sample or step, its
/// state or the addresses of its state differ.
Status checkPhases(std::span<const Plan> plans);

} // namespace shardc::plan
