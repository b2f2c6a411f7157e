// Optimizers on a shard, range by range of the parameter table. One pass applies the clipping
// factor and updates moments, weight decay, the master weight and the weight in its own type. g =
// gradient·gradScale; lr = state.lr·lrMult, or state.decoupledLr·lrMult for parameters with their
// own rate; wd = (weight_decay + state.weightDecay)·wdMult; t = state.applied + countOffset, the
// number of updates in the moments, this one included:
//   adamw         m = b1·m + (1-b1)·g, v = b2·v + (1-b2)·g²,
//                 w -= lr·(m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd·w)
//   sgd           w -= lr·(g + wd·w)
//   sgd_momentum  m = momentum·m + g, w -= lr·(m + wd·w)
//   lion          w -= lr·(sign(b1·m + (1-b1)·g) + wd·w), m = b2·m + (1-b2)·g
// Unless weight decay is decoupled, it is part of the gradient. If state.skip, only the weight is
// written. Gradient, weight, m and v are f32, bf16 or f16, w is f32. Padding between ranges does
// not change. adamw also supports w in two halves, a bf16 weight and a remainder (remainder.cuh);
// then it writes nothing if state.skip. The last division and the root are the device's
// approximations, with an error of up to two units in the last place. Exact ones have a slow path
// for zeros and subnormal numbers, which are frequent in the moments of unused embedding rows.
//
// Mapping: blocks process tiles of 1024 elements of one range in a loop, with four elements per
// thread, so that each load and store of a warp is contiguous. The next tile is loaded while the
// current one is updated. The rows of the table are launch parameters, up to 64 per launch. Limited
// by memory: adamw with bf16 gradients and weights reads and writes 14 bytes per element, with w in
// halves 14 and 12: 3.9 to 4.0 of a copy's 4.24 TB/s within steps on an H200, 2026-11.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/remainder.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kQuad = 4;
constexpr int kBlocksEach = 4; ///< least number per multiprocessor
constexpr int64_t kTile = kThreads * kQuad;
constexpr int kRowsMax = 64;

enum class Rule { AdamW, AdamWOfHalves, Sgd, Momentum, Lion };

template <Rule kRule>
constexpr bool kIsAdamW = kRule == Rule::AdamW || kRule == Rule::AdamWOfHalves;

struct Row {
  int64_t begin, end, firstTile, countOffset;
  float lrMult, wdMult;
  bool isDecoupled;

  /// Number of tiles. Tiles begin at multiples of kQuad elements of the shard, so that quads are
  /// aligned.
  int64_t tiles() const { return ceilDiv(end - begin / kQuad * kQuad, kTile); }
  /// Whether `next` has the same constants and begins where this range ends.
  bool isFollowedBy(const Row &next) const {
    return next.begin == end && next.countOffset == countOffset && next.lrMult == lrMult &&
           next.wdMult == wdMult && next.isDecoupled == isDecoupled;
  }
};

struct Update {
  Data g, weight, m, v;
  float *w;
  uint16_t *remainders; ///< for AdamWOfHalves, which has no w
  const StepState *state;
  double beta1, beta2;
  float eps, momentum, weightDecay;
  bool hasWeight, decoupled;
  int rows;
  int64_t tiles;
  Row row[kRowsMax];
};
static_assert(sizeof(Update) <= 4096);

/// The fp32 constants of an update.
struct Step {
  float gradScale, lr, decayInGradient, decayOfWeight;
  float beta1, oneMinusBeta1, beta2, oneMinusBeta2, eps, momentum;
  float ofMean, ofSquare; ///< factors of bias correction: 1 / (1 - beta^t)
};

__device__ __forceinline__ float approximateRoot(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

template <Rule kRule>
__device__ __forceinline__ void updateElement(const Step &s, float grad, float &w, float &m,
                                              float &v) {
  float g = grad * s.gradScale + s.decayInGradient * w;
  if (kIsAdamW<kRule>) {
    m = s.beta1 * m + s.oneMinusBeta1 * g;
    v = s.beta2 * v + s.oneMinusBeta2 * g * g;
    g = __fdividef(m * s.ofMean, approximateRoot(v * s.ofSquare) + s.eps);
  } else if (kRule == Rule::Momentum) {
    m = s.momentum * m + g;
    g = m;
  } else if (kRule == Rule::Lion) {
    float mixed = s.beta1 * m + s.oneMinusBeta1 * g;
    m = s.beta2 * m + s.oneMinusBeta2 * g;
    g = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
  }
  w -= s.lr * (g + s.decayOfWeight * w);
}

/// Consecutive elements in their memory format.
struct Words {
  uint4 g, w; ///< 16-bit g: in the first half; w of AdamWOfHalves: weights, then remainders
  float4 m, v;
};

/// The elements of Words as fp32 numbers.
struct Quad {
  float g[kQuad], w[kQuad], m[kQuad], v[kQuad];
};

/// Reads elements [i, i + kQuad); i must be a multiple of kQuad.
__device__ __forceinline__ uint4 wordsOf(const Data &d, int64_t i) {
  if (d.format == Format::F32)
    return *reinterpret_cast<const uint4 *>(static_cast<const float *>(d.p) + i);
  uint2 raw = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(d.p) + i);
  return {raw.x, raw.y, 0, 0};
}

__device__ __forceinline__ void numbersOf(const Data &d, const uint4 &words, float (&v)[kQuad]) {
  if (d.format == Format::F32) {
    v[0] = __uint_as_float(words.x), v[1] = __uint_as_float(words.y);
    v[2] = __uint_as_float(words.z), v[3] = __uint_as_float(words.w);
    return;
  }
  float chunk[kChunk];
  unpack<Mode::Mixed>(d, words, chunk);
#pragma unroll
  for (int j = 0; j < kQuad; ++j)
    v[j] = chunk[j];
}

__device__ __forceinline__ void numbersOf(const float4 &words, float (&v)[kQuad]) {
  v[0] = words.x, v[1] = words.y, v[2] = words.z, v[3] = words.w;
}

__device__ __forceinline__ void store4(const Data &d, int64_t i, const float (&v)[kQuad]) {
  if (d.format == Format::F32) {
    *reinterpret_cast<float4 *>(static_cast<float *>(d.p) + i) = {v[0], v[1], v[2], v[3]};
    return;
  }
  uint4 packed = pack<Mode::Mixed>(d, {v[0], v[1], v[2], v[3]});
  *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(d.p) + i) = {packed.x, packed.y};
}

/// Reads moments, which are f32, or of any type if kNarrow.
template <bool kNarrow> __device__ __forceinline__ float4 readMoment(const Data &d, int64_t i) {
  if (!kNarrow)
    return *reinterpret_cast<const float4 *>(static_cast<const float *>(d.p) + i);
  float v[kQuad];
  numbersOf(d, wordsOf(d, i), v);
  return {v[0], v[1], v[2], v[3]};
}

template <bool kNarrow>
__device__ __forceinline__ void storeMoment(const Data &d, int64_t i, const float (&v)[kQuad]) {
  if (kNarrow)
    store4(d, i, v);
  else
    store4({static_cast<float *>(d.p)}, i, v);
}

/// Address of the 16-bit halves of elements [i, i + kQuad).
__device__ __forceinline__ uint2 *quadOf(void *halves, int64_t i) {
  return reinterpret_cast<uint2 *>(static_cast<uint16_t *>(halves) + i);
}

template <Rule kRule, bool kNarrow>
__device__ __forceinline__ void readQuad(const Update &p, int64_t i, bool applied, Words &words) {
  if (kRule == Rule::AdamWOfHalves && applied) {
    uint2 weights = *quadOf(p.weight.p, i), remainders = *quadOf(p.remainders, i);
    words.w = {weights.x, weights.y, remainders.x, remainders.y};
  } else if (kRule != Rule::AdamWOfHalves) {
    words.w = wordsOf({p.w}, i);
  }
  if (!applied)
    return;
  words.g = wordsOf(p.g, i);
  if (kRule != Rule::Sgd)
    words.m = readMoment<kNarrow>(p.m, i);
  if (kIsAdamW<kRule>)
    words.v = readMoment<kNarrow>(p.v, i);
}

template <Rule kRule>
__device__ __forceinline__ Quad numbersOf(const Update &p, bool applied, const Words &words) {
  Quad quad = {};
  if (kRule == Rule::AdamWOfHalves) {
    joinMasters(words.w.x, words.w.z, quad.w);
    joinMasters(words.w.y, words.w.w, quad.w + 2);
  } else {
    numbersOf({p.w}, words.w, quad.w);
  }
  if (applied) {
    numbersOf(p.g, words.g, quad.g);
    numbersOf(words.m, quad.m);
    numbersOf(words.v, quad.v);
  }
  return quad;
}

template <Rule kRule, bool kNarrow>
__device__ __forceinline__ void updateQuad(const Update &p, const Step &step, int64_t i,
                                           bool applied, Quad &quad) {
  if (applied) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      updateElement<kRule>(step, quad.g[j], quad.w[j], quad.m[j], quad.v[j]);
    if (kRule == Rule::AdamWOfHalves) {
      uint2 weights, remainders;
      splitMasters(quad.w, weights.x, remainders.x);
      splitMasters(quad.w + 2, weights.y, remainders.y);
      *quadOf(p.weight.p, i) = weights;
      *quadOf(p.remainders, i) = remainders;
    } else {
      store4({p.w}, i, quad.w);
    }
    if (kRule != Rule::Sgd)
      storeMoment<kNarrow>(p.m, i, quad.m);
    if (kIsAdamW<kRule>)
      storeMoment<kNarrow>(p.v, i, quad.v);
  }
  if (kRule != Rule::AdamWOfHalves && p.hasWeight)
    store4(p.weight, i, quad.w);
}

/// Updates single elements at the ends of a range, which are not part of a whole quad.
template <Rule kRule>
__device__ __forceinline__ void updateAlone(const Update &p, const Step &step, int64_t i,
                                            bool applied) {
  constexpr bool kHasHalves = kRule == Rule::AdamWOfHalves;
  auto *weights = static_cast<uint16_t *>(p.weight.p); // the weights' halves
  float w = kHasHalves ? joinMaster(weights[i], p.remainders[i]) : p.w[i], m = 0, v = 0;
  if (applied) {
    if (kRule != Rule::Sgd)
      m = element(p.m, i);
    if (kIsAdamW<kRule>)
      v = element(p.v, i);
    updateElement<kRule>(step, element(p.g, i), w, m, v);
    if (kHasHalves) {
      MasterBits halves = splitMaster(w);
      weights[i] = static_cast<uint16_t>(halves.weight);
      p.remainders[i] = static_cast<uint16_t>(halves.remainder);
    } else {
      p.w[i] = w;
    }
    if (kRule != Rule::Sgd)
      setElement(p.m, i, m);
    if (kIsAdamW<kRule>)
      setElement(p.v, i, v);
  }
  if (!kHasHalves && p.hasWeight)
    setElement(p.weight, i, w);
}

/// base^n by squaring. pow would need more registers, and so would the whole kernel.
__device__ __forceinline__ double powerOf(double base, int64_t n) {
  double power = 1.0;
  for (; n > 0; n /= 2, base *= base)
    if (n % 2 == 1)
      power *= base;
  return power;
}

/// Computes the constants of a range in shared memory. All threads of the block call it.
template <Rule kRule>
__device__ __forceinline__ void makeStep(const Update &p, const Row &row, Step &shared) {
  __syncthreads();        // earlier reads are complete
  if (threadIdx.x == 0) { // powers are fp64
    int64_t t = p.state->applied + row.countOffset;
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
    if (kIsAdamW<kRule>) {
      shared.ofMean = static_cast<float>(1.0 / (1.0 - powerOf(p.beta1, t)));
      shared.ofSquare = static_cast<float>(1.0 / (1.0 - powerOf(p.beta2, t)));
    }
  }
  __syncthreads();
}

template <Rule kRule, bool kNarrow>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    updateShard(const __grid_constant__ Update p) {
  awaitPrevious();
  const bool applied = p.state->skip == 0;
  Words next = {};
  int64_t nextFirst = 0; // first of this thread's elements
  bool nextIsWhole = false;
  int nextRow = 0;
  auto read = [&](int64_t tile) {
    while (nextRow + 1 < p.rows && p.row[nextRow + 1].firstTile <= tile)
      ++nextRow;
    const Row &row = p.row[nextRow];
    nextFirst = row.begin / kQuad * kQuad + (tile - row.firstTile) * kTile +
                static_cast<int64_t>(threadIdx.x) * kQuad;
    nextIsWhole = nextFirst >= row.begin && nextFirst + kQuad <= row.end;
    if (nextIsWhole)
      readQuad<kRule, kNarrow>(p, nextFirst, applied, next);
  };
  if (blockIdx.x < p.tiles)
    read(blockIdx.x);
  __shared__ Step step;
  int at = -1; // the row whose constants `step` has
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Words words = next;
    const int64_t first = nextFirst;
    const bool isWhole = nextIsWhole, isOther = nextRow != at;
    at = nextRow;
    if (tile + gridDim.x < p.tiles)
      read(tile + gridDim.x);
    const Row &row = p.row[at];
    if (isOther)
      makeStep<kRule>(p, row, step);
    if (isWhole) {
      Quad quad = numbersOf<kRule>(p, applied, words);
      updateQuad<kRule, kNarrow>(p, step, first, applied, quad);
    } else {
      for (int64_t k = max(first, row.begin); k < min(first + kQuad, row.end); ++k)
        updateAlone<kRule>(p, step, k, applied);
    }
  }
}

template <Rule kRule> constexpr int kMomentsOf = kIsAdamW<kRule> ? 2 : kRule == Rule::Sgd ? 0 : 1;

/// Collects the ranges of the shard in the rows of one launch. Adjacent ranges with equal settings
/// are joined. If there are more than kRowsMax rows, several kernels are launched.
template <Rule kRule, bool kNarrow> void runTyped(const Call &call) {
  constexpr int kMoments = kMomentsOf<kRule>;
  const Attrs &attrs = call.attrs;
  Update p = {};
  p.g = dataOf(call.in[0]);
  if constexpr (kRule == Rule::AdamWOfHalves)
    p.remainders = static_cast<uint16_t *>(call.out[0].data);
  else
    p.w = static_cast<float *>(call.out[0].data);
  if (kMoments > 0)
    p.m = dataOf(call.out[1]);
  if (kMoments > 1)
    p.v = dataOf(call.out[2]);
  p.hasWeight = call.outCount > 1 + kMoments;
  if (p.hasWeight)
    p.weight = dataOf(call.out[1 + kMoments]);
  p.state = static_cast<const StepState *>(call.in[2 + kMoments].data);
  p.beta1 = attrs.beta1, p.beta2 = attrs.beta2;
  p.eps = static_cast<float>(attrs.eps), p.momentum = static_cast<float>(attrs.momentum);
  p.decoupled = attrs.decoupled, p.weightDecay = static_cast<float>(attrs.weight_decay);
  int64_t tiles = 0;
  constexpr auto kernel = updateShard<kRule, kNarrow>;
  auto flush = [&] {
    p.tiles = tiles;
    if (p.rows > 0)
      launchKernel(kernel, persistentGrid(kernel, kThreads, 0, tiles), kThreads, 0, queueOf(call),
                   p);
    p.rows = 0, tiles = 0;
  };
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    if (range.begin == range.end)
      continue;
    Row row = {range.begin,  range.end,        tiles, range.countOffset, range.lrMult,
               range.wdMult, range.isDecoupled};
    if (p.rows > 0 && p.row[p.rows - 1].isFollowedBy(row)) { // for example experts of one parameter
      Row &last = p.row[p.rows - 1];
      last.end = row.end, tiles = last.firstTile + last.tiles();
      continue;
    }
    if (p.rows == kRowsMax)
      flush();
    row.firstTile = tiles;
    p.row[p.rows++] = row;
    tiles += row.tiles();
  }
  flush();
}

template <Rule kRule> void runUpdate(const Call &call) {
  bool isNarrow = false;
  for (int i = 1; i <= kMomentsOf<kRule>; ++i)
    isNarrow = isNarrow || call.out[i].dtype != DType::F32;
  if (kMomentsOf < kRule >> 0 && isNarrow)
    runTyped<kRule, (kMomentsOf<kRule> > 0)>(call);
  else
    runTyped<kRule, false>(call);
}

void runAdamW(const Call &call) {
  if (call.out[0].dtype == DType::U16)
    runUpdate<Rule::AdamWOfHalves>(call);
  else
    runUpdate<Rule::AdamW>(call);
}

/// Refuses operands that are not aligned to 16 bytes, because whole quads are read at once.
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

SHARDC_KERNEL(AdamW, accepts, runAdamW);
SHARDC_KERNEL(Sgd, accepts, runUpdate<Rule::Sgd>);
SHARDC_KERNEL(SgdMomentum, accepts, runUpdate<Rule::Momentum>);
SHARDC_KERNEL(Lion, accepts, runUpdate<Rule::Lion>);

} // namespace shardc::kernels::cuda
