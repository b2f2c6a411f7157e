// Optimizers on a shard, range by range of the parameter table, in one pass: clipping factor,
// moments, weight decay, master weight and the weight in its type. g = gradient·gradScale, lr =
// state.lr·lrMult, or state.decoupledLr·lrMult of parameters that have a rate of their own, wd =
// (weight_decay + state.weightDecay)·wdMult, t = updates that the moments count with this one,
// state.applied + countOffset:
//   adamw         m = b1·m + (1-b1)·g, v = b2·v + (1-b2)·g²,
//                 w -= lr·(m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd·w)
//   sgd           w -= lr·(g + wd·w)
//   sgd_momentum  m = momentum·m + g, w -= lr·(m + wd·w)
//   lion          w -= lr·(sign(b1·m + (1-b1)·g) + wd·w), m = b2·m + (1-b2)·g
// Unless decoupled, decay is in the gradient. While state.skip nothing but the weight is
// written. Gradient, weight, m and v f32, bf16 or f16, w f32; padding between ranges is left
// alone. adamw also takes w in two halves, the weight in bf16 and remainders (remainder.cuh), and
// leaves it so, without what is written while state.skip. The last division and the root are the
// device's approximations, two units in the last place off at most: exact ones take a slow path for
// zeros and subnormal numbers, as moments of an embedding are whose tokens do not occur.
// Mapping: tiles of 1024 elements of one range, which blocks take in turns, four elements a thread,
// so that each load and store of a warp is one piece of memory; the next tile is on its way while
// this one is updated. The table's rows travel in the launch's parameters, 64 at a time. Limited by
// memory: for adamw with gradients and weights in bf16 14 bytes read and 14 written an element,
// with w in halves 14 and 12: 3.9 to 4.0 of a copy's 4.24 TB/s within steps on an H200, 2026-11.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/remainder.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kQuad = 4;
constexpr int kBlocksEach = 4; ///< of a multiprocessor, at least
constexpr int64_t kTile = kThreads * kQuad;
constexpr int kRowsMax = 64;

enum class Rule { AdamW, AdamWOfHalves, Sgd, Momentum, Lion };

template <Rule kRule>
constexpr bool kIsAdamW = kRule == Rule::AdamW || kRule == Rule::AdamWOfHalves;

struct Row {
  int64_t begin, end, firstTile, countOffset;
  float lrMult, wdMult;
  bool isDecoupled;

  /// Tiles begin at multiples of a quad of the shard, so that whole quads are aligned.
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
  uint16_t *remainders; ///< of AdamWOfHalves, which has no w
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
  float ofMean, ofSquare; ///< what corrects the moments: 1 / (1 - beta^t)
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

/// Consecutive elements as a thread reads them from memory.
struct Words {
  uint4 g, w; ///< of 16 bits: the first half; of AdamWOfHalves: weights, then remainders
  float4 m, v;
};

/// The same elements as fp32 numbers.
struct Quad {
  float g[kQuad], w[kQuad], m[kQuad], v[kQuad];
};

/// Elements [i, i + kQuad), at a multiple of their bytes.
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

/// Moments are of f32, or of any type where `kNarrow`.
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

/// Halves of elements [i, i + kQuad).
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

/// Updates the elements at the ends of a range, which are not a whole chunk.
template <Rule kRule>
__device__ __forceinline__ void updateAlone(const Update &p, const Step &step, int64_t i,
                                            bool applied) {
  constexpr bool kHasHalves = kRule == Rule::AdamWOfHalves;
  auto *weights = static_cast<uint16_t *>(p.weight.p); // of halves
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

/// base^n. Squares need fewer registers than pow, whose number the whole kernel would have.
__device__ __forceinline__ double powerOf(double base, int64_t n) {
  double power = 1.0;
  for (; n > 0; n /= 2, base *= base)
    if (n % 2 == 1)
      power *= base;
  return power;
}

/// Loads the constants of a range into shared memory; all threads of the block call it.
template <Rule kRule>
__device__ __forceinline__ void makeStep(const Update &p, const Row &row, Step &shared) {
  __syncthreads();        // the last use is over
  if (threadIdx.x == 0) { // powers in fp64
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
  int64_t nextFirst = 0; // of this thread's elements
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
  int at = -1; // the row that it is of
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
      launchKernel(kernel, gridOfTurns(kernel, kThreads, 0, tiles), kThreads, 0, queueOf(call), p);
    p.rows = 0, tiles = 0;
  };
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    if (range.begin == range.end)
      continue;
    Row row = {range.begin,  range.end,        tiles, range.countOffset, range.lrMult,
               range.wdMult, range.isDecoupled};
    if (p.rows > 0 && p.row[p.rows - 1].isFollowedBy(row)) { // as with experts of one parameter
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

/// Whole quads are read 16 bytes at a time.
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

const Kernel kAdamW = {"adamw_cuda", runAdamW, accepts<&host::kAdamW>};
const Kernel kSgd = {"sgd_cuda", runUpdate<Rule::Sgd>, accepts<&host::kSgd>};
const Kernel kSgdMomentum = {"sgd_momentum_cuda", runUpdate<Rule::Momentum>,
                             accepts<&host::kSgdMomentum>};
const Kernel kLion = {"lion_cuda", runUpdate<Rule::Lion>, accepts<&host::kLion>};

} // namespace shardc::kernels::cuda
