// delta_rule, state_scan and their gradients as kernels/host/Scan.cpp describes them, for calls
// that tensor cores do not serve. Mapping: a block processes a head of a sample, position by
// position. A thread has a channel of v, and with it a column of the state, which stays in the
// workspace; in sums over these channels, it has a channel of k instead. The gradient keeps the
// states before every 64th position, computes those between them again, and adds the gradients of a
// group's heads in order. All arithmetic is fp32. Limited by the caches: a state is read and
// written once per position and phase.
#include <optional>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/DeltaRule.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kEach = 64; ///< positions between kept states
constexpr int kSums = 3;  ///< gradients of numbers of a head, at most
constexpr int kChannelsMax = static_cast<int>(cudaLimit(CudaLimit::HeadChannels).most);

/// What a block shares for a position.
struct Shared {
  float q[kChannelsMax], k[kChannelsMax], dOut[kChannelsMax], dv[kChannelsMax], rest[kChannelsMax];
};

/// The numbers of a position. log: of the decay; beta: what u is multiplied by; slope: derivative
/// of the number that a decay is computed from, by that of which softplus is taken.
struct Position {
  int64_t token, at; ///< at: index of the head's number
  float decay, beta, log, slope;
};

template <bool kIsScan> struct Block {
  const Rule &p;
  Shared &shared;
  int head, sample, lane;
  int64_t index; ///< of the head among those of all samples
  float rate, bias, direct;

  __device__ Block(const Rule &p, Shared &shared)
      : p(p), shared(shared), head(static_cast<int>(blockIdx.x)),
        sample(static_cast<int>(blockIdx.y)), lane(static_cast<int>(threadIdx.x)),
        index(int64_t{blockIdx.y} * p.heads + blockIdx.x), rate(expf(element(p.log, head))),
        bias(element(p.bias, head)), direct(kIsScan ? element(p.direct, head) : 0.0f) {}

  __device__ bool hasKey() const { return lane < p.keys; }
  __device__ bool hasValue() const { return lane < p.values; }

  /// Loads query and key, each divided by its norm for delta_rule, and the numbers of a position,
  /// after all threads have read those before.
  __device__ Position load(int64_t s) const {
    __syncthreads();
    Position at;
    at.token = sample * p.length + s, at.at = at.token * p.heads + head;
    const int64_t row = (at.token * p.groups + head / (p.heads / p.groups)) * p.keys + lane;
    const float own[2] = {hasKey() ? element(p.q, row) : 0.0f, hasKey() ? element(p.k, row) : 0.0f};
    float factors[2] = {1.0f, 1.0f};
    if constexpr (!kIsScan) {
      float squares[2] = {own[0] * own[0], own[1] * own[1]};
      blockSum(squares);
      factors[0] = rsqrtf(squares[0] + p.eps) * rsqrtf(static_cast<float>(p.keys));
      factors[1] = rsqrtf(squares[1] + p.eps);
    }
    if (hasKey())
      shared.q[lane] = own[0] * factors[0], shared.k[lane] = own[1] * factors[1];
    const float x = element(p.a, at.at) + bias, step = x > 20.0f ? x : log1pf(expf(x));
    at.log = -rate * step, at.slope = 1.0f / (1.0f + expf(-x));
    at.decay = s == 0 || (p.isReset && p.docs[at.token] == s) ? 0.0f : expf(at.log);
    at.beta = kIsScan ? step : 1.0f / (1.0f + expf(-element(p.b, at.at)));
    __syncthreads();
    return at;
  }

  /// What beta times is u: v - k·d·S, or x. Of threads with a channel of v.
  __device__ float newOf(const Position &at, const float *state) const {
    float rest = element(p.v, at.at * p.values + lane);
    for (int i = 0; !kIsScan && i < p.keys; ++i)
      rest -= shared.k[i] * at.decay * state[i * p.values + lane];
    return rest;
  }
  /// Changes a thread's column of `from` into that of `to`.
  __device__ void step(const Position &at, const float *from, float *to) const {
    const float u = hasValue() ? at.beta * newOf(at, from) : 0.0f;
    for (int i = 0; hasValue() && i < p.keys; ++i)
      to[i * p.values + lane] = at.decay * from[i * p.values + lane] + shared.k[i] * u;
  }
  __device__ void clear(float *state) const {
    for (int i = 0; hasValue() && i < p.keys; ++i)
      state[i * p.values + lane] = 0;
  }
  __device__ void copy(const float *from, float *to) const {
    for (int i = 0; hasValue() && i < p.keys; ++i)
      to[i * p.values + lane] = from[i * p.values + lane];
  }
};

template <bool kIsScan> __global__ void applyRule(const __grid_constant__ Rule p) {
  awaitPrevious();
  __shared__ Shared shared;
  const Block<kIsScan> block(p, shared);
  float *state = p.state + block.index * p.keys * p.values;
  block.clear(state);
  for (int64_t s = 0; s < p.length; ++s) {
    const Position at = block.load(s);
    block.step(at, state, state);
    if (!block.hasValue())
      continue;
    float o = kIsScan ? block.direct * element(p.v, at.at * p.values + block.lane) : 0.0f;
    for (int i = 0; i < p.keys; ++i)
      o += shared.q[i] * state[i * p.values + block.lane];
    setElement(p.o, at.at * p.values + block.lane, o);
  }
}

/// The gradients of a position, from the states before and behind it. `dState` is the gradient of
/// the latter, and then that of the former.
template <bool kIsScan>
__device__ void differentiate(const Block<kIsScan> &block, const Position &at, const float *before,
                              const float *behind, float *dState, float (&sums)[kSums]) {
  const Rule &p = block.p;
  Shared &shared = block.shared;
  const int lane = block.lane;
  float numbers[kSums] = {0, 0, 0}; // gradients of beta, of the decay and of d
  if (block.hasValue()) {
    const float dOut = element(p.o, at.at * p.values + lane), rest = block.newOf(at, before);
    float du = 0;
    for (int i = 0; i < p.keys; ++i) {
      float &d = dState[i * p.values + lane];
      d += shared.q[i] * dOut;
      du += shared.k[i] * d;
    }
    numbers[0] = du * rest, numbers[2] = dOut * rest;
    shared.dOut[lane] = dOut, shared.rest[lane] = rest, shared.dv[lane] = at.beta * du;
    setElement(p.dv, at.at * p.values + lane, at.beta * du + block.direct * dOut);
  }
  __syncthreads();
  if (block.hasKey()) {
    float dq = 0, dk = 0;
    for (int e = 0; e < p.values; ++e) {
      const int i = lane * p.values + e;
      dq += behind[i] * shared.dOut[e];
      dk += at.beta * dState[i] * shared.rest[e];
      dk -= kIsScan ? 0.0f : at.decay * before[i] * shared.dv[e];
    }
    p.dq[at.at * p.keys + lane] = dq, p.dk[at.at * p.keys + lane] = dk;
  }
  __syncthreads();
  for (int i = 0; block.hasValue() && i < p.keys; ++i) {
    float &d = dState[i * p.values + lane];
    d -= kIsScan ? 0.0f : shared.k[i] * shared.dv[lane];
    numbers[1] += d * before[i * p.values + lane];
    d *= at.decay;
  }
  blockSum(numbers);
  const float dLog = numbers[1] * at.decay,
              da = ((kIsScan ? numbers[0] : 0.0f) - dLog * block.rate) * at.slope;
  if (lane == 0)
    setElement(p.da, at.at, da);
  if (lane == 0 && !kIsScan)
    setElement(p.db, at.at, numbers[0] * at.beta * (1.0f - at.beta));
  sums[0] += dLog * at.log, sums[1] += da, sums[2] += numbers[2];
}

template <bool kIsScan> __global__ void differentiateRule(const __grid_constant__ Rule p) {
  awaitPrevious();
  __shared__ Shared shared;
  const Block<kIsScan> block(p, shared);
  const int64_t size = int64_t{p.keys} * p.values, parts = (p.length + kEach - 1) / kEach;
  float *state = p.state + block.index * size, *kept = p.kept + block.index * parts * size,
        *states = p.states + block.index * (kEach + 1) * size, sums[kSums] = {0, 0, 0};
  block.clear(state);
  for (int64_t s = 0; s < p.length; ++s) {
    if (s % kEach == 0)
      block.copy(state, kept + s / kEach * size);
    block.step(block.load(s), state, state);
  }
  block.clear(state); // now the gradient
  for (int64_t part = parts - 1; part >= 0; --part) {
    const int64_t begin = part * kEach, end = begin + kEach < p.length ? begin + kEach : p.length;
    block.copy(kept + part * size, states);
    for (int64_t s = begin; s < end; ++s)
      block.step(block.load(s), states + (s - begin) * size, states + (s - begin + 1) * size);
    for (int64_t s = end - 1; s >= begin; --s)
      differentiate(block, block.load(s), states + (s - begin) * size,
                    states + (s - begin + 1) * size, state, sums);
  }
  if (block.lane == 0)
    for (int i = 0; i < p.sumCount(); ++i)
      p.sums[(block.sample * p.sumCount() + i) * p.heads + block.head] = sums[i];
}

constexpr int kWarpsOfKeys = 8;

/// Adds the gradients of queries, or keys, over a group's `each` terms, and writes them, or for
/// delta_rule those of what these units were made of. A warp has a row of a group, and a lane every
/// 32nd of up to 32·kEach channels.
template <int kEach>
__global__ void writeKeys(const __grid_constant__ Rule p, int each, const Data ofQ,
                          const Data ofK) {
  awaitPrevious();
  const bool isQuery = blockIdx.y == 0;
  const Data &x = isQuery ? p.q : p.k, &dx = isQuery ? ofQ : ofK;
  const float *gradients = isQuery ? p.dq : p.dk;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{blockIdx.x} * kWarpsOfKeys + threadIdx.y;
  if (row >= p.samples * p.length * p.groups)
    return;
  float own[kEach], gradient[kEach] = {}, sums[2] = {};
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    own[n] = n * kWarp + lane < p.keys ? element(x, row * p.keys + n * kWarp + lane) : 0.0f;
  for (int i = 0; i < each; ++i)
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      if (n * kWarp + lane < p.keys)
        gradient[n] += gradients[(row * each + i) * p.keys + n * kWarp + lane];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    sums[0] += own[n] * own[n], sums[1] += own[n] * gradient[n];
  float norm = rsqrtf(warpSum(sums[0]) + p.eps), dot = warpSum(sums[1]) * norm * norm;
  if (p.isScan)
    norm = 1, dot = 0;
  const float factor = isQuery && !p.isScan ? norm * rsqrtf(static_cast<float>(p.keys)) : norm;
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (n * kWarp + lane < p.keys)
      setElement(dx, row * p.keys + n * kWarp + lane, factor * (gradient[n] - own[n] * dot));
}

/// The workspace of a call, of which operands q to docs begin at `first`.
struct RuleBuffers {
  bool isOnTiles;
  float *state = nullptr;
  std::optional<RuleChunks> chunks;
  RuleBuffers(const Call &call, Scratch &scratch)
      : isOnTiles(deltaPathOf(call) == KernelPath::DeltaMma) {
    const Rule p(call, 0, call.out[0]);
    if (isOnTiles)
      chunks.emplace(p, false, scratch);
    else
      state = scratch.take<float>(p.samples * p.heads * p.keys * p.values);
  }
};

struct RuleBwdBuffers {
  bool isOnTiles;
  int parts, terms; ///< of the sums of numbers of a head; of the gradient of a query or key
  float *state = nullptr, *kept = nullptr, *states = nullptr, *dq, *dk, *sums;
  std::optional<RuleChunks> chunks;
  RuleBwdBuffers(const Call &call, Scratch &scratch)
      : isOnTiles(deltaPathOf(call) == KernelPath::DeltaMma) {
    const Rule p(call, 1, call.in[0]);
    const int64_t heads = p.samples * p.heads, size = heads * p.keys * p.values;
    parts = static_cast<int>(p.samples * (isOnTiles ? ceilDiv(p.length, kRuleChunk) : 1));
    terms = p.heads / p.groups;
    if (isOnTiles && p.isScan)
      terms = static_cast<int>(ceilDiv(terms, kScanHeads));
    const int64_t rows = p.samples * p.length * p.groups * terms;
    dq = scratch.take<float>(rows * p.keys), dk = scratch.take<float>(rows * p.keys);
    sums = scratch.take<float>(int64_t{parts} * p.sumCount() * p.heads);
    if (isOnTiles) {
      chunks.emplace(p, true, scratch);
      return;
    }
    state = scratch.take<float>(size);
    kept = scratch.take<float>(ceilDiv(p.length, kEach) * size);
    states = scratch.take<float>((kEach + 1) * size);
  }
};

void runRule(const Call &call, const RuleBuffers &buffers) {
  Rule p(call, 0, call.out[0]);
  p.state = buffers.state;
  if (buffers.isOnTiles)
    (p.isScan ? launchScanTiles : launchRuleTiles)(call, p, *buffers.chunks);
  else
    launchKernel(p.isScan ? applyRule<true> : applyRule<false>, p.grid(), p.threads(), 0,
                 queueOf(call), p);
}

void runRuleBwd(const Call &call, const RuleBwdBuffers &buffers) {
  Rule p(call, 1, call.in[0]);
  p.state = buffers.state, p.kept = buffers.kept, p.states = buffers.states;
  p.dq = buffers.dq, p.dk = buffers.dk, p.sums = buffers.sums;
  p.dv = dataOf(call.out[2]), p.da = dataOf(call.out[3]);
  if (!p.isScan)
    p.db = dataOf(call.out[4]);
  if (buffers.isOnTiles)
    (p.isScan ? launchScanTiles : launchRuleTilesBwd)(call, p, *buffers.chunks);
  else
    launchKernel(p.isScan ? differentiateRule<true> : differentiateRule<false>, p.grid(),
                 p.threads(), 0, queueOf(call), p);
  static_assert(kChannelsMax == 8 * kWarp);
  const int64_t rows = p.samples * p.length * p.groups;
  launchKernel(p.keys <= 4 * kWarp ? writeKeys<4> : writeKeys<8>,
               dim3(static_cast<unsigned>(ceilDiv(rows, kWarpsOfKeys)), 2),
               dim3(kWarp, kWarpsOfKeys), 0, queueOf(call), p, buffers.terms, dataOf(call.out[0]),
               dataOf(call.out[1]));
  ColumnTargets targets = {};
  for (int i = 0; i < p.sumCount(); ++i)
    targets.out[i] = dataOf(call.out[call.outCount - p.sumCount() + i]);
  launchAddPartials(call, p.sums, buffers.parts, p.sumCount(), p.heads, targets);
}

/// The kernels have a thread for each channel of a head.
template <const Kernel *kOracle> const char *acceptsChannels(const Call &call) {
  const char *reason = acceptsAs<kOracle>(call);
  const int first = call.outCount == 1 ? 0 : 1;
  const int64_t channels = std::max(call.in[first].cols(), call.in[first + 2].cols());
  return reason ? reason : cudaRefusal(CudaLimit::HeadChannels, channels);
}

} // namespace

SHARDC_KERNEL(DeltaRule, acceptsChannels, withBuffers<runRule>);
SHARDC_KERNEL(DeltaRuleBwd, acceptsChannels, withBuffers<runRuleBwd>);
SHARDC_KERNEL(StateScan, acceptsChannels, withBuffers<runRule>);
SHARDC_KERNEL(StateScanBwd, acceptsChannels, withBuffers<runRuleBwd>);

} // namespace shardc::kernels::cuda
