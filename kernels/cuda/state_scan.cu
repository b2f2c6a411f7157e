// state_scan and its gradient as kernels/host/Scan.cpp describes them. Mapping: a block processes a
// head of a sample, position by position. A thread has a channel of x, and with it a column of the
// state, which stays in the workspace; for queries and keys, it has a channel of theirs instead. The
// gradient keeps the states before every 64th position, computes those between them again, and adds
// the gradients of a group's heads in order. All arithmetic is fp32. Limited by the caches: a state
// is read and written once per position and phase.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kEach = 64; ///< positions between kept states
constexpr int kChannelsMax = static_cast<int>(cudaLimit(CudaLimit::HeadChannels).most);
constexpr int kSums = 3; ///< gradients of numbers of a head

struct States {
  float *state, *kept = nullptr, *states = nullptr, *dq = nullptr, *dk = nullptr, *sums = nullptr;
};

/// The call. Operands q to docs begin at operand `first`; `y` is the result or its gradient.
struct Space {
  Data q, k, x, dt, log, bias, direct, y, dx, ddt;
  const int32_t *docs;
  States in; ///< in the workspace
  int64_t samples, length;
  int groups, heads, keys, values;
  bool isReset;

  Space(const Call &call, int first, const Tensor &y, const States &in)
      : q(dataOf(call.in[first])), k(dataOf(call.in[first + 1])), x(dataOf(call.in[first + 2])),
        dt(dataOf(call.in[first + 3])), log(dataOf(call.in[first + 4])),
        bias(dataOf(call.in[first + 5])), direct(dataOf(call.in[first + 6])), y(dataOf(y)),
        docs(static_cast<const int32_t *>(call.in[first + 7].data)), in(in), samples(y.shape[0]),
        length(y.shape[1]), groups(static_cast<int>(call.in[first].shape[2])),
        heads(static_cast<int>(y.shape[2])), keys(static_cast<int>(call.in[first].shape[3])),
        values(static_cast<int>(y.shape[3])), isReset(call.attrs.reset_mask) {}

  dim3 grid() const { return {static_cast<unsigned>(heads), static_cast<unsigned>(samples)}; }
  /// Threads of a block: whole warps, one for each channel of k and of x.
  unsigned threads() const {
    return static_cast<unsigned>(ceilDiv(std::max(keys, values), kWarp) * kWarp);
  }
};

/// What a block shares for a position.
struct Shared {
  float q[kChannelsMax], k[kChannelsMax], dOut[kChannelsMax], x[kChannelsMax];
};

struct Position {
  int64_t at; ///< index of the head's number
  float step, slope, decay;
};

struct Block {
  const Space &p;
  Shared &shared;
  int head, sample, lane;
  int64_t index; ///< of the head among those of all samples
  float rate, bias, direct;

  __device__ Block(const Space &p, Shared &shared)
      : p(p), shared(shared), head(static_cast<int>(blockIdx.x)),
        sample(static_cast<int>(blockIdx.y)), lane(static_cast<int>(threadIdx.x)),
        index(int64_t{blockIdx.y} * p.heads + blockIdx.x), rate(expf(element(p.log, head))),
        bias(element(p.bias, head)), direct(element(p.direct, head)) {}

  __device__ bool hasKey() const { return lane < p.keys; }
  __device__ bool hasValue() const { return lane < p.values; }

  /// Loads query, key and the numbers of a position, after all threads have read those before.
  __device__ Position load(int64_t s) const {
    __syncthreads();
    const int64_t token = sample * p.length + s;
    Position at{token * p.heads + head};
    const int64_t row = (token * p.groups + head / (p.heads / p.groups)) * p.keys + lane;
    if (hasKey())
      shared.q[lane] = element(p.q, row), shared.k[lane] = element(p.k, row);
    const float x = element(p.dt, at.at) + bias;
    at.step = x > 20.0f ? x : log1pf(expf(x));
    at.slope = 1.0f / (1.0f + expf(-x));
    at.decay = s == 0 || (p.isReset && p.docs[token] == s) ? 0.0f : expf(-rate * at.step);
    __syncthreads();
    return at;
  }
  /// Changes a thread's column of `from` into that of `to`.
  __device__ void step(const Position &at, const float *from, float *to) const {
    const float u = hasValue() ? at.step * element(p.x, at.at * p.values + lane) : 0.0f;
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

__global__ void applyScan(const __grid_constant__ Space p) {
  awaitPrevious();
  __shared__ Shared shared;
  const Block block(p, shared);
  float *state = p.in.state + block.index * p.keys * p.values;
  block.clear(state);
  for (int64_t s = 0; s < p.length; ++s) {
    const Position at = block.load(s);
    block.step(at, state, state);
    if (!block.hasValue())
      continue;
    float y = block.direct * element(p.x, at.at * p.values + block.lane);
    for (int i = 0; i < p.keys; ++i)
      y += shared.q[i] * state[i * p.values + block.lane];
    setElement(p.y, at.at * p.values + block.lane, y);
  }
}

/// The gradients of a position, from the states before and behind it. `dState` is the gradient of
/// the latter, and then that of the former.
__device__ void differentiate(const Block &block, const Position &at, const float *before,
                              const float *behind, float *dState, float (&sums)[kSums]) {
  const Space &p = block.p;
  Shared &shared = block.shared;
  const int lane = block.lane;
  float numbers[kSums] = {0, 0, 0}; // gradients of the decay, of u's factor, of d
  if (block.hasValue()) {
    const int64_t own = at.at * p.values + lane;
    const float dOut = element(p.y, own), x = element(p.x, own);
    float du = 0;
    for (int i = 0; i < p.keys; ++i) {
      float &d = dState[i * p.values + lane];
      d += shared.q[i] * dOut;
      du += shared.k[i] * d;
    }
    numbers[1] = du * x, numbers[2] = dOut * x;
    shared.dOut[lane] = dOut, shared.x[lane] = x;
    setElement(p.dx, own, at.step * du + block.direct * dOut);
  }
  __syncthreads();
  if (block.hasKey()) {
    float dq = 0, dk = 0;
    for (int e = 0; e < p.values; ++e) {
      dq += behind[lane * p.values + e] * shared.dOut[e];
      dk += dState[lane * p.values + e] * shared.x[e];
    }
    p.in.dq[at.at * p.keys + lane] = dq, p.in.dk[at.at * p.keys + lane] = at.step * dk;
  }
  __syncthreads();
  for (int i = 0; block.hasValue() && i < p.keys; ++i) {
    float &d = dState[i * p.values + lane];
    numbers[0] += d * before[i * p.values + lane];
    d *= at.decay;
  }
  blockSum(numbers);
  const float dLog = numbers[0] * at.decay, dt = (numbers[1] - dLog * block.rate) * at.slope;
  if (lane == 0)
    setElement(p.ddt, at.at, dt);
  sums[0] -= dLog * block.rate * at.step, sums[1] += dt, sums[2] += numbers[2];
}

__global__ void differentiateScan(const __grid_constant__ Space p) {
  awaitPrevious();
  __shared__ Shared shared;
  const Block block(p, shared);
  const int64_t size = int64_t{p.keys} * p.values, parts = (p.length + kEach - 1) / kEach;
  float *state = p.in.state + block.index * size, *kept = p.in.kept + block.index * parts * size,
        *states = p.in.states + block.index * (kEach + 1) * size, sums[kSums] = {0, 0, 0};
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
    for (int i = 0; i < kSums; ++i)
      p.in.sums[(i * p.samples + block.sample) * p.heads + block.head] = sums[i];
}

/// Adds the gradients of queries or keys over the heads of a group.
__global__ void addHeads(const __grid_constant__ Space p, const float *gradients, const Data to) {
  awaitPrevious();
  const int64_t token = blockIdx.x / p.groups, each = p.heads / p.groups;
  const int group = static_cast<int>(blockIdx.x % p.groups), lane = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int64_t i = 0; lane < p.keys && i < each; ++i)
    sum += gradients[(token * p.heads + group * each + i) * p.keys + lane];
  if (lane < p.keys)
    setElement(to, int64_t{blockIdx.x} * p.keys + lane, sum);
}

struct Buffers : States {
  Buffers(const Call &call, Scratch &scratch) {
    state = scratch.take<float>(call.in[2].shape[0] * call.in[2].shape[2] * call.in[0].cols() *
                                call.in[2].cols());
  }
};

struct BwdBuffers : States {
  BwdBuffers(const Call &call, Scratch &scratch) {
    const Tensor &y = call.in[0];
    const int64_t columns = call.in[1].cols(), blocks = y.shape[0] * y.shape[2],
                  size = blocks * columns * y.cols(), rows = y.shape[1] * blocks * columns;
    state = scratch.take<float>(size);
    kept = scratch.take<float>(ceilDiv(y.shape[1], kEach) * size);
    states = scratch.take<float>((kEach + 1) * size);
    dq = scratch.take<float>(rows), dk = scratch.take<float>(rows);
    sums = scratch.take<float>(kSums * blocks);
  }
};

void runScan(const Call &call, const Buffers &buffers) {
  const Space p(call, 0, call.out[0], buffers);
  launchKernel(applyScan, p.grid(), p.threads(), 0, queueOf(call), p);
}

void runScanBwd(const Call &call, const BwdBuffers &buffers) {
  Space p(call, 1, call.in[0], buffers);
  p.dx = dataOf(call.out[2]), p.ddt = dataOf(call.out[3]);
  launchKernel(differentiateScan, p.grid(), p.threads(), 0, queueOf(call), p);
  const auto rows = static_cast<unsigned>(p.samples * p.length * p.groups);
  launchKernel(addHeads, rows, p.threads(), 0, queueOf(call), p, p.in.dq, dataOf(call.out[0]));
  launchKernel(addHeads, rows, p.threads(), 0, queueOf(call), p, p.in.dk, dataOf(call.out[1]));
  for (int i = 0; i < kSums; ++i) {
    ColumnTargets targets = {};
    targets.out[0] = dataOf(call.out[4 + i]);
    launchAddPartials(call, p.in.sums + i * p.samples * p.heads, static_cast<int>(p.samples), 1,
                      p.heads, targets);
  }
}

/// The kernels have a thread for each channel of a head.
template <const Kernel *kOracle> const char *acceptsChannels(const Call &call) {
  const char *reason = acceptsAs<kOracle>(call);
  const int first = call.outCount == 1 ? 0 : 1;
  const int64_t channels = std::max(call.in[first].cols(), call.in[first + 2].cols());
  return reason ? reason : cudaRefusal(CudaLimit::HeadChannels, channels);
}

} // namespace

SHARDC_KERNEL(StateScan, acceptsChannels, withBuffers<runScan>);
SHARDC_KERNEL(StateScanBwd, acceptsChannels, withBuffers<runScanBwd>);

} // namespace shardc::kernels::cuda
