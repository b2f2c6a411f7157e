// What init_block and the ops on StepState compute, for the kernels of all backends: counters,
// learning rates and weight decay as in Megatron's OptimizerParamScheduler, sums of losses and
// tokens, gradient norm, clipping factor and loss scale. Arithmetic is fp64. A norm or loss that is
// not finite sets nonfinite and halt, and the update does not count as applied; with a dynamic loss
// scale, it sets only nonfinite. A skipped update, for that reason or because the norm exceeds
// skip_above, sets skip. Gradients are multiplied by the loss scale, so norm and update divide by
// it.
#pragma once

#include <cmath>

#include "kernels/api/EachSide.h"
#include "kernels/api/Kernel.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::step {

/// An initial value of LogUniform, Uniform or StepBias, from a uniform number in [0, 1).
SHARDC_EACH_SIDE inline float initialValue(ParamRange::Init init, float std, double uniform) {
  const double number = std;
  if (init == ParamRange::LogUniform)
    return static_cast<float>(::log1p((number - 1) * uniform));
  if (init == ParamRange::Uniform)
    return static_cast<float>(number * (2 * uniform - 1));
  const double step = number * ::pow(100.0, uniform - 1);
  return static_cast<float>(step + ::log(-::expm1(-step))); // softplus of it is the step
}

/// Enumerators have the order of the words of scaling, decay_style, wsd_decay_style and
/// weight_decay_style in Attrs.def.
enum Scaling { NoScaling, ConstantScaling, DynamicScaling };
enum DecayStyle { Constant, Linear, Cosine, InverseSquareRoot, WarmupStableDecay, DecayStyles };
enum FinalStyle { FinalExponential, FinalLinear, FinalCosine, FinalMinusSqrt, FinalStyles };
enum WeightDecayStyle { DecayConstant, DecayLinear, DecayCosine, DecayStylesOfWeights };

SHARDC_EACH_SIDE inline double cosine(double ratio) {
  return 0.5 * (::cos(3.141592653589793238463 * ratio) + 1.0);
}

/// Weight of the largest rate in the last wsd_decay_steps steps of a warmup-stable-decay schedule.
SHARDC_EACH_SIDE inline double finalCoefficient(const Attrs &attrs, int64_t counted) {
  int64_t start = attrs.decay_steps - attrs.wsd_decay_steps;
  if (counted <= start)
    return 1.0;
  double ratio = static_cast<double>(counted - start) / static_cast<double>(attrs.wsd_decay_steps);
  switch (attrs.wsd_decay_style) {
  case FinalLinear:
    return 1.0 - ratio;
  case FinalCosine:
    return cosine(ratio);
  case FinalMinusSqrt:
    return 1.0 - ::sqrt(ratio);
  default:
    return 2.0 * ::pow(0.5, ratio) - 1.0;
  }
}

/// The learning rate after `counted` applied updates or after the samples of these updates;
/// attributes use the same unit. It rises linearly during warmup, then decays from the largest to
/// the smallest rate by the decay style.
SHARDC_EACH_SIDE inline double learningRate(const Attrs &attrs, double largest, double smallest,
                                            int64_t counted) {
  double n = static_cast<double>(counted), warmup = static_cast<double>(attrs.warmup_steps);
  if (attrs.warmup_steps > 0 && counted <= attrs.warmup_steps)
    return attrs.warmup_init_lr + (largest - attrs.warmup_init_lr) * n / warmup;
  if (attrs.decay_style == Constant)
    return largest;
  if (counted > attrs.decay_steps)
    return smallest;
  if (attrs.decay_style == InverseSquareRoot)
    return ::fmax(smallest, largest * ::sqrt(::fmax(warmup, 1.0)) / ::sqrt(::fmax(n, 1.0)));
  double coefficient;
  if (attrs.decay_style == WarmupStableDecay) {
    coefficient = finalCoefficient(attrs, counted);
  } else {
    double ratio = (n - warmup) / (static_cast<double>(attrs.decay_steps) - warmup);
    coefficient = attrs.decay_style == Linear ? 1.0 - ratio : cosine(ratio);
  }
  return smallest + coefficient * (largest - smallest);
}

/// The weight decay of the next update; 0 if it does not change.
SHARDC_EACH_SIDE inline double weightDecay(const Attrs &attrs, int64_t counted) {
  if (attrs.weight_decay_style == DecayConstant)
    return 0;
  double ratio = static_cast<double>(counted) / attrs.weight_decay_steps;
  if (ratio > 1.0)
    return attrs.end_weight_decay;
  double coefficient = attrs.weight_decay_style == DecayLinear ? ratio : cosine(1.0 - ratio);
  return attrs.start_weight_decay +
         coefficient * (attrs.end_weight_decay - attrs.start_weight_decay);
}

/// The state before the first step.
SHARDC_EACH_SIDE inline void reset(const Attrs &attrs, StepState &state) {
  state = StepState{};
  state.lossScale = static_cast<float>(attrs.loss_scale);
  state.hysteresisTracker = static_cast<int32_t>(attrs.hysteresis);
}

/// Begins a step: clears its sums, and computes learning rates and weight decay. Decoupled
/// parameters have a rate of their own.
SHARDC_EACH_SIDE inline void begin(const Attrs &attrs, StepState &state) {
  ++state.step;
  state.lossSum = 0;
  state.tokens = 0;
  int64_t counted = attrs.step_samples > 0 ? state.samples : state.applied;
  state.lr = static_cast<float>(learningRate(attrs, attrs.lr, attrs.min_lr, counted));
  state.decoupledLr =
      static_cast<float>(learningRate(attrs, attrs.decoupled_lr, attrs.decoupled_min_lr, counted));
  state.weightDecay = static_cast<float>(weightDecay(attrs, counted));
}

/// Packs what ranks sum after a step: squares of gradients, losses, tokens, and whether a rank was
/// asked to stop. Losses that several ranks have added are divided by their number; squares that
/// every rank has are not summed.
SHARDC_EACH_SIDE inline void pack(const Attrs &attrs, const StepState &state, double squares,
                                  int32_t stop, double *partial) {
  partial[0] = attrs.norm_replicated ? 0.0 : squares;
  partial[1] = state.lossSum / static_cast<double>(attrs.loss_copies);
  partial[2] = state.tokens / static_cast<double>(attrs.loss_copies);
  partial[3] = stop != 0 ? 1.0 : 0.0;
}

/// The mean loss per token. If no token counts, the sum itself, which is then 0 unless something is
/// wrong.
SHARDC_EACH_SIDE inline double meanLoss(double lossSum, double tokens) {
  return tokens > 0 ? lossSum / tokens : lossSum;
}

/// Megatron's DynamicGradScaler; with a hysteresis of 1, PyTorch's GradScaler. As in the latter,
/// the scale does not grow beyond the range of f32.
SHARDC_EACH_SIDE inline void updateLossScale(const Attrs &attrs, bool isFinite, StepState &state) {
  if (!isFinite) {
    state.growthTracker = 0;
    if (--state.hysteresisTracker <= 0)
      state.lossScale = ::fmaxf(state.lossScale * 0.5f, static_cast<float>(attrs.min_scale));
    return;
  }
  if (++state.growthTracker < attrs.growth_interval)
    return;
  state.growthTracker = 0;
  state.hysteresisTracker = static_cast<int32_t>(attrs.hysteresis);
  if (std::isfinite(state.lossScale * 2.0f))
    state.lossScale *= 2.0f;
}

/// Computes the mean loss, the gradient norm and the clipping factor, and decides whether the
/// update is skipped. `partial` has sums over all ranks, of what pack() makes; `squares` counts
/// instead if every rank has them.
SHARDC_EACH_SIDE inline void finish(const Attrs &attrs, const double *partial, double squares,
                                    StepState &state) {
  double gradientTokens = attrs.per_token ? ::fmax(partial[2], 1.0) : 1.0;
  state.totalTokens = partial[2];
  state.loss = meanLoss(partial[1], partial[2]);
  double divisor = gradientTokens * (attrs.scaling == NoScaling ? 1.0 : state.lossScale);
  double norm = ::sqrt(attrs.norm_replicated ? squares : partial[0]);
  state.gradNorm = static_cast<float>(norm / divisor);
  bool isFinite = std::isfinite(state.gradNorm) && std::isfinite(state.loss);
  // A halt persists: the host may have enqueued further steps, which must not change the state.
  state.halt |= !isFinite && attrs.scaling != DynamicScaling;
  state.nonfinite = state.halt || !isFinite;
  state.stop = partial[3] != 0;
  // As in Megatron, the clipping factor never increases gradients.
  double factor = attrs.clip > 0 ? attrs.clip / (static_cast<double>(state.gradNorm) + 1e-6) : 1.0;
  state.gradScale = static_cast<float>(::fmin(factor, 1.0) / divisor);
  bool isLarge = attrs.skip_above > 0 && state.gradNorm > attrs.skip_above;
  state.skip = state.nonfinite || isLarge;
  if (!state.skip) {
    ++state.applied;
    state.samples += attrs.step_samples;
  }
  if (attrs.scaling == DynamicScaling)
    updateLossScale(attrs, isFinite, state);
}

} // namespace shardc::kernels::step
