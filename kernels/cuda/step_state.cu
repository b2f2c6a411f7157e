// The ops on StepState: counters, learning rates, weight decay, sums of losses and tokens, gradient
// norm and clipping factor. They work in place and in fp64, by the formulas of
// kernels/api/StepFormulas.h. Mapping: one thread; sums of losses use one block of 1024 threads.
// Limited by launches: each op processes a few numbers per step and takes 1.2 to 3.6 us in a
// captured step on an H200, 2026-11.
#include "kernels/api/StepFormulas.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

/// Operands of the one-thread ops.
struct Scalars {
  StepState *state;
  const double *partial, *squares;
  const int32_t *stop;
  double *packed;
  Attrs attrs;
};

struct Reset {
  static __device__ void run(const Scalars &p) { step::reset(p.attrs, *p.state); }
};

struct Begin {
  static __device__ void run(const Scalars &p) { step::begin(p.attrs, *p.state); }
};

struct StepPack {
  static __device__ void run(const Scalars &p) {
    step::pack(p.attrs, *p.state, *p.squares, *p.stop, p.packed);
  }
};

struct StepFinish {
  static __device__ void run(const Scalars &p) {
    step::finish(p.attrs, p.partial, *p.squares, *p.state);
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
    p.state->evalLoss = step::meanLoss(p.partial[0], p.partial[1]);
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

SHARDC_KERNEL(StepReset, acceptsAs, runOnState<Reset>);
SHARDC_KERNEL(StepBegin, acceptsAs, runOnState<Begin>);
SHARDC_KERNEL(LossAdd, acceptsAs, runAddLosses<false>);
SHARDC_KERNEL(StepPack, acceptsAs, runStepPack);
SHARDC_KERNEL(StepFinish, acceptsAs, runStepFinish);
SHARDC_KERNEL(EvalBegin, acceptsAs, runOnState<EvalBegin>);
SHARDC_KERNEL(EvalAdd, acceptsAs, runAddLosses<true>);
SHARDC_KERNEL(EvalPack, acceptsAs, runEvalPack);
SHARDC_KERNEL(EvalFinish, acceptsAs, runEvalFinish);

} // namespace shardc::kernels::cuda
