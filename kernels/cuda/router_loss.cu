// Loads of experts, and losses of routers. Rows are divided into G equal parts; the member's index
// determines which of all rows it has.
//  expert_load: ids i32[T,K] -> load f32[G,E]; may accumulate
//  router_loss: logits f32[T,E], load -> losses f32[T]; router_loss_bwd: logits, load, state? ->
//    dlogits f32[T,E]
//  router_z_loss, router_z_loss_bwd: the same without a load
//  tally: x f32[R,C] -> sums f32[slots,C]; may accumulate
//  running_mean: the mean of the microbatches so far
//  expert_bias.update: bias f32[R,E], load f32[R,E] -> bias in place
// Ops.def has the formulas. Sums are fp64, rounded once; loads are integers. Mapping: losses have a
// warp per row. A load has a thread per choice, whose counts atomics add in any order. Sums of
// columns and means of rows have one block each. Losses are limited by the latency of fp64
// exponentials, the other ops by the latency of launches.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/router.cuh"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

/// Maps rows of a call to parts.
struct PartsOfRows {
  int64_t first, size; ///< index of the member's first row among all rows, and rows per part

  __device__ int64_t of(int64_t row) const { return (first + row) / size; }
};

PartsOfRows partsOf(const Call &call, int64_t rows, const Tensor &load) {
  return {call.index * rows, rows * call.groupSize / load.shape[0]};
}

unsigned blocksOf(int64_t threads) { return static_cast<unsigned>(ceilDiv(threads, 256)); }

// ---- expert_load ----

struct Load {
  const int32_t *ids;
  int32_t *counts; ///< i32[G,E]
  float *load;
  PartsOfRows parts;
  int64_t choices, numel, experts, loads; ///< choices per row; all choices; elements of the load
  bool accumulate;
};

__global__ void __launch_bounds__(256) clearCounts(const Load p) {
  awaitPrevious();
  if (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.loads)
    p.counts[i] = 0;
}

__global__ void __launch_bounds__(256) countChoices(const Load p) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.numel)
    return;
  int32_t id = p.ids[i];
  if (id >= 0 && id < p.experts)
    atomicAdd(p.counts + p.parts.of(i / p.choices) * p.experts + id, 1);
}

__global__ void __launch_bounds__(256) takeCounts(const Load p) {
  awaitPrevious();
  if (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.loads)
    p.load[i] = (p.accumulate ? p.load[i] : 0.0f) + static_cast<float>(p.counts[i]);
}

struct LoadBuffers {
  int32_t *counts;

  LoadBuffers(const Call &call, Scratch &scratch) {
    counts = scratch.take<int32_t>(call.out[0].numel());
  }
};

void runExpertLoad(const Call &call, const LoadBuffers &buffers) {
  const Tensor &ids = call.in[0], &load = call.out[0];
  Load p = {static_cast<const int32_t *>(ids.data),
            buffers.counts,
            static_cast<float *>(load.data),
            partsOf(call, ids.shape[0], load),
            ids.shape[1],
            ids.numel(),
            load.shape[1],
            load.numel(),
            load.accumulate};
  Queue &queue = queueOf(call);
  launchKernel(clearCounts, blocksOf(p.loads), 256, 0, queue, p);
  launchKernel(countChoices, blocksOf(p.numel), 256, 0, queue, p);
  launchKernel(takeCounts, blocksOf(p.loads), 256, 0, queue, p);
}

// ---- router_loss, router_z_loss ----

struct Losses {
  const float *logits, *load; ///< load: null for router_z_loss
  const StepState *state;
  PartsOfRows parts;
  int64_t rows, score;
  int32_t experts;
  double scale; ///< factor of losses or gradients, without the state's loss scale
  float *out;

  __device__ double factor() const {
    return scale * (state == nullptr ? 1.0 : static_cast<double>(state->lossScale));
  }
};

/// The inputs from which the shares of a row's experts are computed.
struct Shares {
  int64_t score;
  Softmax softmax;
  double divisor; ///< divisor of scores

  __device__ Shares(int64_t score, const float *logits, int32_t experts)
      : score(score), softmax{}, divisor(1) {
    if (score == kRouterSoftmax) {
      softmax = softmaxOfRow(logits, experts);
      return;
    }
    double sum = 0;
    for (int32_t e = lane(); e < experts; e += kWarp)
      sum += scoreOf(score, logits[e]);
    divisor = warpSum(sum) + kRouterEps;
  }
  __device__ double of(float logit) const {
    return score == kRouterSoftmax ? softmax.of(logit) : scoreOf(score, logit) / divisor;
  }
  __device__ double slope(float logit) const {
    return score == kRouterSoftmax ? softmax.of(logit)
                                   : slopeOf(score, logit, scoreOf(score, logit)) / divisor;
  }
};

__device__ double logOf(const Softmax &softmax) { return softmax.largest + log(softmax.sum); }

/// Returns the sum over experts of load times share.
__device__ double meanLoad(const Losses &p, const float *logits, const float *load,
                           const Shares &shares) {
  double sum = 0;
  for (int32_t e = lane(); e < p.experts; e += kWarp)
    sum += static_cast<double>(load[e]) * shares.of(logits[e]);
  return warpSum(sum);
}

__global__ void __launch_bounds__(kRouterWarps *kWarp) lossesOfRows(const Losses p) {
  awaitPrevious();
  int64_t row = rowOfWarp();
  if (row >= p.rows)
    return;
  const float *logits = p.logits + row * p.experts;
  double loss;
  if (p.load != nullptr) {
    Shares shares(p.score, logits, p.experts);
    loss = meanLoad(p, logits, p.load + p.parts.of(row) * p.experts, shares);
  } else {
    double lse = logOf(softmaxOfRow(logits, p.experts));
    loss = lse * lse;
  }
  if (lane() == 0)
    p.out[row] = static_cast<float>(p.scale * loss);
}

__global__ void __launch_bounds__(kRouterWarps *kWarp) gradientsOfRows(const Losses p) {
  awaitPrevious();
  int64_t row = rowOfWarp();
  if (row >= p.rows)
    return;
  const float *logits = p.logits + row * p.experts;
  float *out = p.out + row * p.experts;
  double factor = p.factor();
  if (p.load != nullptr) {
    const float *load = p.load + p.parts.of(row) * p.experts;
    Shares shares(p.score, logits, p.experts);
    double mean = meanLoad(p, logits, load, shares);
    for (int32_t e = lane(); e < p.experts; e += kWarp)
      out[e] = static_cast<float>(factor * (static_cast<double>(load[e]) - mean) *
                                  shares.slope(logits[e]));
  } else {
    Softmax softmax = softmaxOfRow(logits, p.experts);
    factor *= 2 * logOf(softmax);
    for (int32_t e = lane(); e < p.experts; e += kWarp)
      out[e] = static_cast<float>(factor * softmax.of(logits[e]));
  }
}

/// Launches a loss or its gradient. After the logits, the call has `loads` operands, then perhaps a
/// step state.
void launchLosses(const Call &call, void (*kernel)(const Losses), int loads, double factor) {
  const Tensor &logits = call.in[0];
  Losses p = {};
  p.logits = static_cast<const float *>(logits.data);
  if (loads > 0) {
    p.load = static_cast<const float *>(call.in[1].data);
    p.parts = partsOf(call, logits.rows(), call.in[1]);
  }
  if (call.inCount > 1 + loads)
    p.state = static_cast<const StepState *>(call.in[1 + loads].data);
  p.rows = logits.rows(), p.score = call.attrs.score;
  p.experts = static_cast<int32_t>(logits.cols());
  p.scale = call.attrs.scale * factor;
  p.out = static_cast<float *>(call.out[0].data);
  launchKernel(kernel, blocksOfRouter(p.rows), kRouterWarps * kWarp, 0, queueOf(call), p);
}

template <int kLoads> void runLosses(const Call &call) {
  launchLosses(call, lossesOfRows, kLoads, 1);
}
template <int kLoads> void runGradients(const Call &call) {
  launchLosses(call, gradientsOfRows, kLoads, call.attrs.loss_scale);
}

// ---- state from one microbatch or step to the next ----

struct Sums {
  const float *x, *n; ///< n: the divisor of the sum, or null
  float *sums;
  int64_t rows, cols, slots, slot;
  double scale;
  bool accumulate;
};

__global__ void __launch_bounds__(256) sumColumn(const Sums p) {
  awaitPrevious();
  int64_t col = blockIdx.x;
  double sum[1] = {};
  for (int64_t row = threadIdx.x; row < p.rows; row += blockDim.x)
    sum[0] += static_cast<double>(p.x[row * p.cols + col]);
  blockSum(sum);
  double scale = p.n ? p.scale / fmax(static_cast<double>(*p.n), 1.0) : p.scale;
  for (int64_t slot = threadIdx.x; slot < p.slots; slot += blockDim.x) {
    float own = slot == p.slot ? static_cast<float>(scale * sum[0]) : 0.0f;
    float *to = p.sums + slot * p.cols + col;
    *to = p.accumulate ? *to + own : own;
  }
}

void runTally(const Call &call) {
  const Tensor &x = call.in[0], &sums = call.out[0];
  Sums p = {static_cast<const float *>(x.data),
            call.inCount > 1 ? static_cast<const float *>(call.in[1].data) : nullptr,
            static_cast<float *>(sums.data),
            x.rows(),
            x.cols(),
            call.attrs.slots,
            call.attrs.slot,
            call.attrs.scale,
            sums.accumulate};
  launchKernel(sumColumn, static_cast<unsigned>(p.cols), 256, 0, queueOf(call), p);
}

struct Mean {
  const float *total;
  float *mean;
  const int64_t *launch; ///< step, microbatch, microbatches on the device, or null
  int64_t microbatch, numel;
};

__global__ void __launch_bounds__(256) takeMean(const Mean p) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.numel)
    return;
  int64_t microbatch = p.launch ? p.launch[1] : p.microbatch;
  p.mean[i] = __fdiv_rn(p.total[i], static_cast<float>(microbatch + 1));
}

void runRunningMean(const Call &call) {
  Mean p = {static_cast<const float *>(call.in[0].data), static_cast<float *>(call.out[0].data),
            call.launch, call.microbatch, call.in[0].numel()};
  launchKernel(takeMean, blocksOf(p.numel), 256, 0, queueOf(call), p);
}

struct Biases {
  const float *load;
  float *bias;
  int64_t experts;
  float rate;
};

__global__ void __launch_bounds__(256) updateBias(const Biases p) {
  awaitPrevious();
  const float *load = p.load + blockIdx.x * p.experts;
  double sum[1] = {};
  for (int64_t e = threadIdx.x; e < p.experts; e += blockDim.x)
    sum[0] += static_cast<double>(load[e]);
  blockSum(sum);
  auto mean = static_cast<float>(sum[0] / static_cast<double>(p.experts));
  for (int64_t e = threadIdx.x; e < p.experts; e += blockDim.x)
    p.bias[blockIdx.x * p.experts + e] += load[e] < mean ? p.rate : load[e] > mean ? -p.rate : 0.0f;
}

void runExpertBiasUpdate(const Call &call) {
  const Tensor &load = call.in[1];
  Biases p = {static_cast<const float *>(load.data), static_cast<float *>(call.out[0].data),
              load.cols(), static_cast<float>(call.attrs.rate)};
  launchKernel(updateBias, static_cast<unsigned>(load.rows()), 256, 0, queueOf(call), p);
}

} // namespace

SHARDC_KERNEL(ExpertLoad, acceptsAs, withBuffers<runExpertLoad>);
SHARDC_KERNEL(RouterLoss, acceptsAs, runLosses<1>);
SHARDC_KERNEL(RouterLossBwd, acceptsAs, runGradients<1>);
SHARDC_KERNEL(RouterZLoss, acceptsAs, runLosses<0>);
SHARDC_KERNEL(RouterZLossBwd, acceptsAs, runGradients<0>);
SHARDC_KERNEL(Tally, acceptsAs, runTally);
SHARDC_KERNEL(RunningMean, acceptsAs, runRunningMean);
SHARDC_KERNEL(ExpertBiasUpdate, acceptsAs, runExpertBiasUpdate);

} // namespace shardc::kernels::cuda
