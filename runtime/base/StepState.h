// A small device buffer that ops pass from step to step, with counters, learning rate, loss sums
// and norm. Only ops write it; the host reads a copy. See docs/plan.md.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shardc {

/// Fixed layout of 128 bytes, the same on every backend. Sums cover only this rank until
/// step.finish.
struct StepState {
  int64_t step;       ///< steps that have begun
  int64_t applied;    ///< updates that were applied; schedules in steps use this count
  double lossSum;     ///< sum of masked losses of this step's microbatches
  double tokens;      ///< sum of the loss mask of this step's microbatches
  double evalLossSum; ///< sum of masked losses of the current evaluation
  double evalTokens;
  double loss;               ///< loss of the last finished step: global sum / global tokens
  double evalLoss;           ///< of the last finished evaluation
  double totalTokens;        ///< global token count (loss mask) of the last finished step
  float lr;                  ///< learning rate of this step
  float gradNorm;            ///< global norm of the last finished step, before clipping
  float gradScale;           ///< factor of update ops on gradients: clipping and 1/tokens
  int32_t nonfinite;         ///< whether norm or loss was not finite
  int32_t halt;              ///< the run must end; a dynamic loss scale shrinks instead
  int32_t stop;              ///< whether a rank requested to stop
  float lossScale;           ///< factor on the loss where its gradient starts
  int32_t growthTracker;     ///< consecutive finite steps since the scale changed
  int32_t hysteresisTracker; ///< overflows left until the scale shrinks
  float decoupledLr;         ///< learning rate of parameters with a rate of their own
  /// Weight decay of this step if it follows a schedule. Otherwise 0: the attribute `weight_decay`
  /// of the update op has the constant, and kernels use the sum of both.
  float weightDecay;
  int32_t skip; ///< the update leaves the weights unchanged: nonfinite, or too large a norm
  /// Samples of steps whose updates were applied; schedules in samples use this count.
  int64_t samples;
};
static_assert(sizeof(StepState) == 128 && std::is_trivially_copyable_v<StepState>);

/// Number of doubles that step.pack passes to the all-reduce: squares, loss sum, tokens, stop.
inline constexpr int64_t kStepPartialCount = 4;
/// Number of doubles that eval.pack passes to the all-reduce: loss sum, tokens.
inline constexpr int64_t kEvalPartialCount = 2;

} // namespace shardc
