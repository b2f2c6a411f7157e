// attention_sink: attention with one additional key per query, whose value is 0 and whose score is
// a parameter of the head: lse' = log(exp(lse) + exp(sink)), o' = exp(lse - lse')·o. Mapping: a
// thread processes a chunk of channels of one query and head. attention_sink_bwd: dsink (+)= -sum
// over queries of exp(sink - lse')·(do·o'). Mapping: a block processes one of 32 parts of a head's
// queries. A query has as many threads as it has chunks, up to a warp. A second kernel adds the
// parts in order, so that results do not depend on the order of blocks. All arithmetic is fp32;
// limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kParts = 32; ///< parts of a head's queries

/// o is [B, S, N, D], lse is [B, N, S]. firstHead: index of the first head of o among the sinks'
/// heads.
struct SinkRows {
  Data dOut, o, to, sinks;
  const float *lse;
  float *all;
  int64_t rows, positions;
  int heads, channels, firstHead;
  bool hasSinks;

  /// Index of a query's statistic. Queries are numbered over all samples.
  __device__ int64_t statisticOf(int64_t query, int head) const {
    return (query / positions * heads + head) * positions + query % positions;
  }
};

template <Mode M> __global__ void __launch_bounds__(kThreads) addSinks(const SinkRows p) {
  awaitPrevious();
  int chunks = (p.channels + kChunk - 1) / kChunk;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = i / chunks;
  if (row >= p.rows)
    return;
  int c = static_cast<int>(i % chunks) * kChunk, n = upToChunk(p.channels - c);
  float v[kChunk];
  load8<M>(p.o, row * p.channels + c, n, v);
  int head = static_cast<int>(row % p.heads);
  int64_t at = p.statisticOf(row / p.heads, head);
  float lse = p.lse[at], sink = p.hasSinks ? element(p.sinks, p.firstHead + head) : 0.0f;
  float top = fmaxf(lse, sink);
  float share = lse == -INFINITY ? 0.0f : expf(lse - top), total = share + expf(sink - top);
  if (c == 0)
    p.all[at] = top + logf(total);
  float weight = share / total;
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] *= weight;
  store8<M>(p.to, row * p.channels + c, n, v);
}

/// Sums partials[part, head] for all heads that have sinks; those of other ranks' heads are 0.
template <Mode M>
__global__ void __launch_bounds__(kThreads) sumSinks(const SinkRows p, int lanes, float *partials) {
  awaitPrevious();
  __shared__ float sums[kWarps];
  int lane = static_cast<int>(threadIdx.x) % lanes, together = kThreads / lanes;
  int of = static_cast<int>(blockIdx.x), head = of - p.firstHead;
  bool isOwn = head >= 0 && head < p.heads;
  float sum = 0;
  if (isOwn) {
    float sink = element(p.sinks, of);
    int64_t queries = p.rows / p.heads;
#pragma unroll 4 // so that loads of four queries are under way
    for (int64_t q = static_cast<int64_t>(blockIdx.y) * together + threadIdx.x / lanes; q < queries;
         q += kParts * together) {
      int64_t row = (q * p.heads + head) * p.channels;
      float delta = 0;
      for (int c = lane * kChunk; c < p.channels; c += lanes * kChunk) {
        float a[kChunk], b[kChunk];
        load8<M>(p.dOut, row + c, upToChunk(p.channels - c), a);
        load8<M>(p.o, row + c, upToChunk(p.channels - c), b);
#pragma unroll
        for (int j = 0; j < kChunk; ++j)
          delta += a[j] * b[j];
      }
      sum -= expf(sink - p.lse[p.statisticOf(q, head)]) * delta;
    }
  }
  sum = warpSum(sum);
  if (threadIdx.x % kWarp == 0)
    sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0)
    return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
    total += sums[w];
  partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + of] = total;
}

SinkRows rowsOf(const Call &call, const Tensor &o, const Tensor &lse) {
  SinkRows p = {};
  p.o = dataOf(o), p.lse = static_cast<const float *>(lse.data);
  p.rows = lse.numel(), p.positions = lse.shape[2];
  p.heads = static_cast<int>(lse.shape[1]);
  p.channels = static_cast<int>(o.numel() / p.rows);
  p.firstHead = static_cast<int>(call.index) * p.heads;
  return p;
}

void runSink(const Call &call) {
  SinkRows p = rowsOf(call, call.in[0], call.in[1]);
  p.to = dataOf(call.out[0]), p.all = static_cast<float *>(call.out[1].data);
  p.hasSinks = call.inCount > 2;
  p.sinks = dataOf(call.in[p.hasSinks ? 2 : 0]);
  auto blocks = static_cast<unsigned>(ceilDiv(p.rows * ceilDiv(p.channels, kChunk), kThreads));
  forMode(modeOf({&call.in[0], &call.out[0]}, p.channels),
          [&]<Mode M>() { launchKernel(addSinks<M>, blocks, kThreads, 0, queueOf(call), p); });
}

struct Buffers {
  float *partials;

  Buffers(const Call &call, Scratch &scratch) {
    partials = scratch.take<float>(kParts * call.in[3].numel());
  }
};

void runSinkBwd(const Call &call, const Buffers &buffers) {
  SinkRows p = rowsOf(call, call.in[1], call.in[2]);
  p.dOut = dataOf(call.in[0]), p.sinks = dataOf(call.in[3]);
  int64_t heads = call.in[3].numel();
  int lanes = 1;
  while (lanes < kWarp && lanes * kChunk < p.channels)
    lanes *= 2;
  dim3 grid(static_cast<unsigned>(heads), kParts);
  forMode(modeOf({&call.in[0], &call.in[1]}, p.channels), [&]<Mode M>() {
    launchKernel(sumSinks<M>, grid, kThreads, 0, queueOf(call), p, lanes, buffers.partials);
  });
  ColumnTargets targets = {};
  targets.out[0] = dataOf(call.out[0]);
  launchAddPartials(call, buffers.partials, kParts, 1, heads, targets);
}

} // namespace

SHARDC_KERNEL(AttentionSink, acceptsAs, runSink);
SHARDC_KERNEL(AttentionSinkBwd, acceptsAs, withBuffers<runSinkBwd>);

} // namespace shardc::kernels::cuda
