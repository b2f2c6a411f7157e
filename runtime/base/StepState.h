// The small device buffer that ops pass from step to step: counters, learning rate, loss sums,
// norm. Only ops write it; the host reads a copy. See docs/plan.md.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shardc {

/// Fixed layout of 128 bytes, the same on every backend. Sums are of this rank until step.finish.
struct StepState {
  int64_t step;       ///< steps begun
  int64_t applied;    ///< updates that were applied; a schedule in steps counts these
  double lossSum;     ///< sum of masked losses of this step's microbatches
  double tokens;      ///< sum of the loss mask of this step's microbatches
  double evalLossSum; ///< the same for the current evaluation
  double evalTokens;
  double loss;               ///< loss of the last finished step: global sum / global tokens
  double evalLoss;           ///< of the last finished evaluation
  double totalTokens;        ///< global token count (loss mask) of the last finished step
  float lr;                  ///< learning rate of this step
  float gradNorm;            ///< global norm, before clipping, of the last finished step
  float gradScale;           ///< update ops multiply gradients by it: clipping and 1/tokens
  int32_t nonfinite;         ///< norm or loss was not finite
  int32_t halt;              ///< the run cannot continue; a dynamic loss scale shrinks instead
  int32_t stop;              ///< a rank asked to stop
  float lossScale;           ///< the loss is multiplied by it where its gradient starts
  int32_t growthTracker;     ///< finite steps in a row since the scale changed
  int32_t hysteresisTracker; ///< overflows until the scale shrinks
  float decoupledLr;         ///< learning rate of parameters that have one of their own
  float weightDecay;         ///< of this step, where it changes; else 0, and the update ops have it
  int32_t skip; ///< the update leaves the weights unchanged: nonfinite, or a norm that is too large
  int64_t samples; ///< of the steps whose updates were applied; a schedule in samples counts these
};
static_assert(sizeof(StepState) == 128 && std::is_trivially_copyable_v<StepState>);

/// Doubles that step.pack passes to the all-reduce: squares, loss sum, tokens, stop.
inline constexpr int64_t kStepPartialCount = 4;
/// Doubles that eval.pack passes to the all-reduce: loss sum, tokens.
inline constexpr int64_t kEvalPartialCount = 2;

} // namespace shardc
