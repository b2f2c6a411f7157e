// What follows from a job's options, in one place for passes, verifier, runs and checkpoints: batch
// sizes, loss scaling, steps that are passed over, and the plans of a job whose batch grows.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- batches; evaluations have sizes of their own where the job says so ----

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

// ---- experts ----

/// Whether the parameter is of experts that ranks divide. Megatron then has it in an optimizer of
/// its own.
inline bool isExpertParallel(const Job &job, const Param &param) {
  return param.isStacked() && job.model.expertModelParallelSize > 1;
}

// ---- loss scaling ----

/// In the order of the words of the attribute `scaling`.
enum class Scaling : uint8_t { None, Constant, Dynamic };

/// A fixed scale may be asked for in any type; fp16 without one has a dynamic scale.
inline Scaling scalingOf(const Job &job) {
  if (job.optimizer.lossScale > 0)
    return Scaling::Constant;
  return job.model.fp16 ? Scaling::Dynamic : Scaling::None;
}

/// The scale with which a run without a checkpoint begins.
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

// ---- steps that a run passes over: their samples count as consumed, and nothing else happens ----

/// The numbers of `train.iterations_to_skip`, ascending, each once; steps count from 1. Nothing if
/// the plan says something else than whole numbers.
inline std::optional<std::vector<int64_t>> skippedSteps(const Job &job) {
  std::vector<int64_t> steps;
  for (std::string_view text : job.train.iterationsToSkip) {
    int64_t step = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc() || end != text.data() + text.size())
      return std::nullopt;
    steps.push_back(step);
  }
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

/// How many of these steps come behind step `begin`, up to step `end`.
inline int64_t countSkipped(const std::vector<int64_t> &steps, int64_t begin, int64_t end) {
  auto upTo = [&](int64_t step) { return std::ranges::upper_bound(steps, step) - steps.begin(); };
  return std::max<int64_t>(upTo(end) - upTo(begin), 0);
}

// ---- a job whose global batch size grows has a plan for each size, in the order of the run; all
// of them keep the state in the same places ----

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
