// Optimizers on a shard, range by range of the parameter table, in one pass: clipping factor,
// moments, weight decay, master weight and the weight in its type. g = gradient·gradScale, lr =
// state.lr·lrMult, or state.decoupledLr·lrMult of parameters that have a rate of their own, wd =
// (weight_decay + state.weightDecay)·wdMult, t = updates that the moments count with this one,
// state.applied + countOffset:
//   adamw         m = b1·m + (1-b1)·g, v = b2·v + (1-b2)·g²,
//                 w -= lr·(m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd·w)
//   sgd           w -= lr·(g + wd·w)
//   sgd_momentum  m = momentum·m + g, w -= lr·(m + wd·w)
// Unless decoupled, decay is in the gradient. While state.skip nothing but the weight is
// written. Gradient and weight f32, bf16 or f16, w, m and v f32; padding between ranges is left
// alone. Mapping: tiles of 2048 elements of one range, a block a tile, a chunk of 8 a thread; the
// table's rows travel in the launch's parameters, 64 at a time. Limited by memory: for adamw with
// gradients and weights in bf16 14 bytes read and 14 written an element: 4.03 of a copy's 4.24 TB/s
// on an H200, 2026-11, with fp32 gradients (16 and 14) 4.06. Loads that are issued before the
// powers are computed cost registers, and 7 % of that.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int64_t kTile = 2048;
constexpr int kRowsMax = 64;

enum class Rule { AdamW, Sgd, Momentum };

struct Row {
  int64_t begin, end, firstTile, countOffset;
  float lrMult, wdMult;
  bool isDecoupled;
};

struct Update {
  Data g, weight;
  float *w, *m, *v;
  const StepState *state;
  double beta1, beta2;
  float eps, momentum, weightDecay;
  bool hasWeight, decoupled;
  int rows;
  Row row[kRowsMax];
};
static_assert(sizeof(Update) <= 4096);

/// What an update needs beside its arrays, in fp32.
struct Step {
  float gradScale, lr, decayInGradient, decayOfWeight;
  float beta1, oneMinusBeta1, beta2, oneMinusBeta2, eps, correction1, correction2, momentum;
};

template <Rule kRule>
__device__ __forceinline__ void updateElement(const Step &s, float grad, float &w, float &m,
                                              float &v) {
  float g = grad * s.gradScale + s.decayInGradient * w;
  if (kRule == Rule::AdamW) {
    m = s.beta1 * m + s.oneMinusBeta1 * g;
    v = s.beta2 * v + s.oneMinusBeta2 * g * g;
    g = m / s.correction1 / (sqrtf(v / s.correction2) + s.eps);
  } else if (kRule == Rule::Momentum) {
    m = s.momentum * m + g;
    g = m;
  }
  w -= s.lr * (g + s.decayOfWeight * w);
}

template <Rule kRule>
__device__ void updateChunk(const Update &p, const Step &step, int64_t i, int n, bool applied) {
  constexpr Mode M = Mode::Mixed; // of whole chunks; shorter ones go element by element
  Data wData = {p.w}, mData = {p.m}, vData = {p.v};
  float g[kChunk], w[kChunk], m[kChunk] = {}, v[kChunk] = {};
  load8<M>(wData, i, n, w);
  if (applied) {
    load8<M>(p.g, i, n, g);
    if (kRule != Rule::Sgd)
      load8<M>(mData, i, n, m);
    if (kRule == Rule::AdamW)
      load8<M>(vData, i, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      updateElement<kRule>(step, g[j], w[j], m[j], v[j]);
    store8<M>(wData, i, n, w);
    if (kRule != Rule::Sgd)
      store8<M>(mData, i, n, m);
    if (kRule == Rule::AdamW)
      store8<M>(vData, i, n, v);
  }
  if (p.hasWeight)
    store8<M>(p.weight, i, n, w);
}

template <Rule kRule>
__global__ void __launch_bounds__(256) updateShard(const __grid_constant__ Update p) {
  awaitPrevious();
  __shared__ Step shared;
  int at = 0;
  int64_t tile = blockIdx.x;
  while (at + 1 < p.rows && p.row[at + 1].firstTile <= tile)
    ++at;
  const Row &row = p.row[at];
  bool applied = p.state->skip == 0;
  if (threadIdx.x == 0) { // powers in fp64, once a block
    auto t = static_cast<double>(p.state->applied + row.countOffset);
    float lr = row.isDecoupled ? p.state->decoupledLr : p.state->lr;
    float decay = (p.weightDecay + p.state->weightDecay) * row.wdMult;
    shared = {p.state->gradScale, lr * row.lrMult};
    shared.decayInGradient = p.decoupled ? 0.0f : decay;
    shared.decayOfWeight = p.decoupled ? decay : 0.0f;
    shared.beta1 = static_cast<float>(p.beta1);
    shared.beta2 = static_cast<float>(p.beta2);
    shared.oneMinusBeta1 = static_cast<float>(1.0 - p.beta1);
    shared.oneMinusBeta2 = static_cast<float>(1.0 - p.beta2);
    shared.eps = p.eps;
    shared.momentum = p.momentum;
    if (kRule == Rule::AdamW) {
      shared.correction1 = static_cast<float>(1.0 - pow(p.beta1, t));
      shared.correction2 = static_cast<float>(1.0 - pow(p.beta2, t));
    }
  }
  __syncthreads();
  Step step = shared;
  // Tiles begin at multiples of 8 elements of the shard, so that whole chunks are aligned.
  int64_t i = row.begin / kChunk * kChunk + (tile - row.firstTile) * kTile +
              static_cast<int64_t>(threadIdx.x) * kChunk;
  if (i >= row.begin && i + kChunk <= row.end) {
    updateChunk<kRule>(p, step, i, kChunk, applied);
    return;
  }
  for (int64_t k = max(i, row.begin); k < min(i + kChunk, row.end); ++k)
    updateChunk<kRule>(p, step, k, 1, applied);
}

constexpr int momentsOf(Rule rule) {
  return rule == Rule::AdamW ? 2 : rule == Rule::Momentum ? 1 : 0;
}

template <Rule kRule> void runUpdate(const Call &call) {
  constexpr int kMoments = momentsOf(kRule);
  const Attrs &attrs = call.attrs;
  Update p = {};
  p.g = dataOf(call.in[0]);
  p.w = static_cast<float *>(call.out[0].data);
  p.m = kMoments > 0 ? static_cast<float *>(call.out[1].data) : nullptr;
  p.v = kMoments > 1 ? static_cast<float *>(call.out[2].data) : nullptr;
  p.hasWeight = call.outCount > 1 + kMoments;
  if (p.hasWeight)
    p.weight = dataOf(call.out[1 + kMoments]);
  p.state = static_cast<const StepState *>(call.in[2 + kMoments].data);
  p.beta1 = attrs.beta1, p.beta2 = attrs.beta2;
  p.eps = static_cast<float>(attrs.eps), p.momentum = static_cast<float>(attrs.momentum);
  p.decoupled = attrs.decoupled, p.weightDecay = static_cast<float>(attrs.weight_decay);
  int64_t tiles = 0;
  auto flush = [&] {
    if (p.rows > 0)
      launchKernel(updateShard<kRule>, static_cast<unsigned>(tiles), 256, 0, queueOf(call), p);
    p.rows = 0, tiles = 0;
  };
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    if (range.begin == range.end)
      continue;
    if (p.rows == kRowsMax)
      flush();
    p.row[p.rows++] = {range.begin,  range.end,        tiles, range.countOffset, range.lrMult,
                       range.wdMult, range.isDecoupled};
    tiles += ceilDiv(range.end - range.begin / kChunk * kChunk, kTile);
  }
  flush();
}

/// Whole chunks are read 16 bytes at a time.
template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  for (int i = 0; i < call.inCount; ++i)
    if (reinterpret_cast<uintptr_t>(call.in[i].data) % 16 != 0)
      return "a shard does not begin at a multiple of 16 bytes";
  for (int i = 0; i < call.outCount; ++i)
    if (reinterpret_cast<uintptr_t>(call.out[i].data) % 16 != 0)
      return "a shard does not begin at a multiple of 16 bytes";
  return nullptr;
}

} // namespace

const Kernel kAdamW = {"adamw_cuda", runUpdate<Rule::AdamW>, accepts<&host::kAdamW>};
const Kernel kSgd = {"sgd_cuda", runUpdate<Rule::Sgd>, accepts<&host::kSgd>};
const Kernel kSgdMomentum = {"sgd_momentum_cuda", runUpdate<Rule::Momentum>,
                             accepts<&host::kSgdMomentum>};

} // namespace shardc::kernels::cuda
