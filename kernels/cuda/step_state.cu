// The ops on StepState: counters, learning rates, weight decay, sums of losses and tokens, gradient
// norm and clipping factor. They work in place and in fp64, by the formulas of
// kernels/host/StepState.cpp and Schedule.cpp. Mapping: one thread; sums of losses use one block of
// 1024 threads. Limited by launches: each op processes a few numbers per step and takes 1.2 to 3.6
// us in a captured step on an H200, 2026-11.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr double kPi = 3.141592653589793238463;

/// Enumerators have the order of the words of scaling, decay_style, wsd_decay_style and
/// weight_decay_style in Attrs.def.
enum LossScaling { NoScaling, ConstantScaling, DynamicScaling };
enum DecayStyle { Constant, Linear, Cosine, InverseSquareRoot, WarmupStableDecay };
enum FinalStyle { FinalExponential, FinalLinear, FinalCosine, FinalMinusSqrt };
enum WeightDecayStyle { DecayConstant, DecayLinear, DecayCosine };

__device__ double cosineOf(double ratio) { return 0.5 * (cos(kPi * ratio) + 1.0); }

/// The factor of the learning rate in the last steps of warmup-stable-decay, from 1 to 0.
__device__ double finalCoefficient(const Attrs &attrs, int64_t counted) {
  int64_t start = attrs.decay_steps - attrs.wsd_decay_steps;
  if (counted <= start)
    return 1.0;
  double ratio = static_cast<double>(counted - start) / static_cast<double>(attrs.wsd_decay_steps);
  switch (attrs.wsd_decay_style) {
  case FinalLinear:
    return 1.0 - ratio;
  case FinalCosine:
    return cosineOf(ratio);
  case FinalMinusSqrt:
    return 1.0 - sqrt(ratio);
  default:
    return 2.0 * pow(0.5, ratio) - 1.0;
  }
}

/// The learning rate after `counted` steps: it rises from warmup_init_lr to `largest`, then decays
/// to `smallest`.
__device__ double learningRate(const Attrs &attrs, double largest, double smallest,
                               int64_t counted) {
  double n = static_cast<double>(counted), warmup = static_cast<double>(attrs.warmup_steps);
  if (attrs.warmup_steps > 0 && counted <= attrs.warmup_steps)
    return attrs.warmup_init_lr + (largest - attrs.warmup_init_lr) * n / warmup;
  if (attrs.decay_style == Constant)
    return largest;
  if (counted > attrs.decay_steps)
    return smallest;
  if (attrs.decay_style == InverseSquareRoot)
    return fmax(smallest, largest * sqrt(fmax(warmup, 1.0)) / sqrt(fmax(n, 1.0)));
  double coefficient;
  if (attrs.decay_style == WarmupStableDecay) {
    coefficient = finalCoefficient(attrs, counted);
  } else {
    double ratio = (n - warmup) / (static_cast<double>(attrs.decay_steps) - warmup);
    coefficient = attrs.decay_style == Linear ? 1.0 - ratio : cosineOf(ratio);
  }
  return smallest + coefficient * (largest - smallest);
}

__device__ double weightDecay(const Attrs &attrs, int64_t counted) {
  if (attrs.weight_decay_style == DecayConstant)
    return 0;
  double ratio = static_cast<double>(counted) / attrs.weight_decay_steps;
  if (ratio > 1.0)
    return attrs.end_weight_decay;
  double coefficient = attrs.weight_decay_style == DecayLinear ? ratio : cosineOf(1.0 - ratio);
  return attrs.start_weight_decay +
         coefficient * (attrs.end_weight_decay - attrs.start_weight_decay);
}

/// The mean loss per token. If no token counts, the sum itself, which is then 0 unless something is
/// wrong.
__device__ double meanLoss(double lossSum, double tokens) {
  return tokens > 0 ? lossSum / tokens : lossSum;
}

/// Operands of the one-thread ops.
struct Scalars {
  StepState *state;
  const double *partial, *squares;
  const int32_t *stop;
  double *packed;
  Attrs attrs;
};

/// The state before the first step.
struct Reset {
  static __device__ void run(const Scalars &p) {
    *p.state = StepState{};
    p.state->lossScale = static_cast<float>(p.attrs.loss_scale);
    p.state->hysteresisTracker = static_cast<int32_t>(p.attrs.hysteresis);
  }
};

/// Begins a step: clears its sums, and computes learning rates and weight decay by the schedule.
struct Begin {
  static __device__ void run(const Scalars &p) {
    ++p.state->step;
    p.state->lossSum = 0;
    p.state->tokens = 0;
    const Attrs &attrs = p.attrs;
    int64_t counted = attrs.step_samples > 0 ? p.state->samples : p.state->applied;
    p.state->lr = static_cast<float>(learningRate(attrs, attrs.lr, attrs.min_lr, counted));
    p.state->decoupledLr = static_cast<float>(
        learningRate(attrs, attrs.decoupled_lr, attrs.decoupled_min_lr, counted));
    p.state->weightDecay = static_cast<float>(weightDecay(attrs, counted));
  }
};

/// Packs what ranks sum after a step: squares of gradients, losses, tokens, and whether a rank was
/// asked to stop. Losses that several ranks have added are divided by their number; squares that
/// every rank has are not summed.
struct StepPack {
  static __device__ void run(const Scalars &p) {
    p.packed[0] = p.attrs.norm_replicated ? 0.0 : *p.squares;
    p.packed[1] = p.state->lossSum / static_cast<double>(p.attrs.loss_copies);
    p.packed[2] = p.state->tokens / static_cast<double>(p.attrs.loss_copies);
    p.packed[3] = *p.stop != 0 ? 1.0 : 0.0;
  }
};

/// Dynamic loss scaling. After `growth_interval` finite steps in a row, the scale is doubled.
/// Thereafter, the first `hysteresis` - 1 non-finite steps leave it, and each further one halves
/// it, down to `min_scale`.
__device__ void updateLossScale(const Attrs &attrs, bool finite, StepState &state) {
  if (!finite) {
    state.growthTracker = 0;
    if (--state.hysteresisTracker <= 0)
      state.lossScale = fmaxf(state.lossScale * 0.5f, static_cast<float>(attrs.min_scale));
    return;
  }
  if (++state.growthTracker < attrs.growth_interval)
    return;
  state.growthTracker = 0;
  state.hysteresisTracker = static_cast<int32_t>(attrs.hysteresis);
  if (isfinite(state.lossScale * 2.0f))
    state.lossScale *= 2.0f;
}

struct StepFinish {
  static __device__ void run(const Scalars &p) {
    StepState &state = *p.state;
    double squares = p.attrs.norm_replicated ? *p.squares : p.partial[0];
    double gradientTokens = p.attrs.per_token ? fmax(p.partial[2], 1.0) : 1.0;
    state.totalTokens = p.partial[2];
    state.loss = meanLoss(p.partial[1], p.partial[2]);
    double divisor = gradientTokens * (p.attrs.scaling == NoScaling ? 1.0 : state.lossScale);
    state.gradNorm = static_cast<float>(sqrt(squares) / divisor);
    bool finite = isfinite(state.gradNorm) && isfinite(state.loss);
    // A halt persists, because the host may have enqueued further steps, which must not change the
    // state.
    state.halt |= !finite && p.attrs.scaling != DynamicScaling;
    state.nonfinite = state.halt || !finite;
    state.stop = p.partial[3] != 0;
    // As in Megatron, the clipping factor never increases gradients.
    double factor =
        p.attrs.clip > 0 ? p.attrs.clip / (static_cast<double>(state.gradNorm) + 1e-6) : 1.0;
    state.gradScale = static_cast<float>(fmin(factor, 1.0) / divisor);
    bool large = p.attrs.skip_above > 0 && state.gradNorm > p.attrs.skip_above;
    state.skip = state.nonfinite || large;
    if (!state.skip) {
      ++state.applied;
      state.samples += p.attrs.step_samples;
    }
    if (p.attrs.scaling == DynamicScaling)
      updateLossScale(p.attrs, finite, state);
  }
};

struct EvalBegin {
  static __device__ void run(const Scalars &p) {
    p.state->evalLossSum = 0;
    p.state->evalTokens = 0;
  }
};

struct EvalPack {
  static __device__ void run(const Scalars &p) {
    p.packed[0] = p.state->evalLossSum;
    p.packed[1] = p.state->evalTokens;
  }
};

struct EvalFinish {
  static __device__ void run(const Scalars &p) {
    p.state->evalLoss = meanLoss(p.partial[0], p.partial[1]);
  }
};

template <typename Op> __global__ void onState(const __grid_constant__ Scalars p) {
  awaitPrevious();
  Op::run(p);
}

template <typename Op> void launchOnState(const Call &call, Scalars p) {
  p.attrs = call.attrs;
  launchKernel(onState<Op>, 1, 1, 0, queueOf(call), p);
}

StepState *stateOf(const Tensor &t) { return static_cast<StepState *>(t.data); }

/// Executes an op whose only result is the state.
template <typename Op> void runOnState(const Call &call) {
  Scalars p = {};
  p.state = stateOf(call.out[0]);
  launchOnState<Op>(call, p);
}

void runStepPack(const Call &call) {
  Scalars p = {};
  p.state = stateOf(call.in[0]);
  p.squares = static_cast<const double *>(call.in[1].data);
  p.stop = static_cast<const int32_t *>(call.in[2].data);
  p.packed = static_cast<double *>(call.out[0].data);
  launchOnState<StepPack>(call, p);
}

void runStepFinish(const Call &call) {
  Scalars p = {};
  p.state = stateOf(call.out[0]);
  p.partial = static_cast<const double *>(call.in[1].data);
  p.squares = static_cast<const double *>(call.in[2].data);
  launchOnState<StepFinish>(call, p);
}

void runEvalPack(const Call &call) {
  Scalars p = {};
  p.state = stateOf(call.in[0]);
  p.packed = static_cast<double *>(call.out[0].data);
  launchOnState<EvalPack>(call, p);
}

void runEvalFinish(const Call &call) {
  Scalars p = {};
  p.state = stateOf(call.out[0]);
  p.partial = static_cast<const double *>(call.in[1].data);
  launchOnState<EvalFinish>(call, p);
}

__global__ void __launch_bounds__(1024)
    addLosses(const float *losses, int64_t numel, const float *n, double *lossSum, double *tokens) {
  awaitPrevious();
  double sum[1] = {0.0};
  for (int64_t i = threadIdx.x; i < numel; i += blockDim.x)
    sum[0] += static_cast<double>(losses[i]);
  blockSum(sum);
  if (threadIdx.x != 0)
    return;
  *lossSum += sum[0];
  *tokens += static_cast<double>(*n);
}

template <bool kEval> void runAddLosses(const Call &call) {
  StepState *state = stateOf(call.out[0]);
  launchKernel(addLosses, 1, 1024, 0, queueOf(call), static_cast<const float *>(call.in[1].data),
               call.in[1].numel(), static_cast<const float *>(call.in[2].data),
               kEval ? &state->evalLossSum : &state->lossSum,
               kEval ? &state->evalTokens : &state->tokens);
}

} // namespace

const Kernel kStepReset = {"step_reset_cuda", runOnState<Reset>, acceptsAs<&host::kStepReset>};
const Kernel kStepBegin = {"step_begin_cuda", runOnState<Begin>, acceptsAs<&host::kStepBegin>};
const Kernel kLossAdd = {"loss_add_cuda", runAddLosses<false>, acceptsAs<&host::kLossAdd>};
const Kernel kStepPack = {"step_pack_cuda", runStepPack, acceptsAs<&host::kStepPack>};
const Kernel kStepFinish = {"step_finish_cuda", runStepFinish, acceptsAs<&host::kStepFinish>};
const Kernel kEvalBegin = {"eval_begin_cuda", runOnState<EvalBegin>, acceptsAs<&host::kEvalBegin>};
const Kernel kEvalAdd = {"eval_add_cuda", runAddLosses<true>, acceptsAs<&host::kEvalAdd>};
const Kernel kEvalPack = {"eval_pack_cuda", runEvalPack, acceptsAs<&host::kEvalPack>};
const Kernel kEvalFinish = {"eval_finish_cuda", runEvalFinish, acceptsAs<&host::kEvalFinish>};

} // namespace shardc::kernels::cuda
