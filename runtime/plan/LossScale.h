// What a job says of loss scaling, in one place for passes, runs and checkpoints.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan {

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

} // namespace shardc::plan
