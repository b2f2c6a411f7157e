// o[b,s,n,:] = sum over visible keys j of dropout(P[j])·v[b,j,g,:], P = softmax(scale·q·k_j);
// lse[b,n,s]. Backward with delta = do·o, P = exp(scale·q·kᵀ - lse), M dropout's factors and dP =
// M·(do·vᵀ):
//   dv = (M·P)ᵀ·do, dS = scale·P·(dP - delta), dq = dS·k, dk = dSᵀ·q, summed over a group's heads.
// q[B,S,N,D], k and v[B,S,G,D], o[B,S,N·D] f32, bf16 or f16 each, lse f32. Online softmax over
// tiles of 32 keys; all arithmetic fp32 on the CUDA cores, sums in a fixed order, no atomics: dq
// has a kernel over query tiles, dk and dv one over key tiles. Mapping: a block of 8 warps holds 32
// rows of one head; a warp has 4 rows, a lane one column of a tile's scores, then every 32nd
// channel of the results. Limited by fp32 arithmetic and shared memory: right for every type and
// mask rather than fast. 6.8 TFLOP/s forward and 4.4 backward on an H200, 2026-11, where cuDNN has
// 531 and 437.
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dropout.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr int kRows = kTile / kWarps; ///< of a warp

struct Attention {
  Data q, k, v, o, dOut, dq, dk, dv;
  float *lse, *delta;
  const int32_t *docs;
  const int64_t *samples;
  int positions, heads, groups, channels;
  uint32_t firstHead; ///< of all ranks' heads, the first one here
  int window;         ///< keys before its own that a query sees; negative: all
  float scale;
  bool causal, resetMask;
  DropoutMask mask;
};

struct Span {
  int begin, end;
};

/// Row of dropout's mask, as kernels/host/Attention.h defines it.
__device__ __forceinline__ uint32_t dropoutRow(const Attention &p, int head, int query) {
  return (p.firstHead + static_cast<uint32_t>(head)) * static_cast<uint32_t>(p.positions) +
         static_cast<uint32_t>(query);
}

/// Keys visible to a query, as kernels/host/Attention.h defines them. Never empty.
__device__ __forceinline__ Span visible(const Attention &p, const int32_t *docs, int query) {
  Span span = {0, p.causal ? query + 1 : p.positions};
  if (p.window >= 0)
    span.begin = max(query - p.window, 0);
  if (!p.resetMask)
    return span;
  span.begin = max(span.begin, min(max(docs[query], 0), query));
  if (!p.causal)
    for (span.end = query + 1; span.end < p.positions && docs[span.end] == docs[query];)
      ++span.end;
  return span;
}

/// Rows [first, first + 32) of one head into shared memory, `pitch` floats apart; rows past the end
/// are zero.
__device__ __forceinline__ void loadTile(const Data &x, const Attention &p, int sample, int head,
                                         int heads, int first, float *tile, int pitch) {
  for (int at = static_cast<int>(threadIdx.x); at < kTile * p.channels;
       at += static_cast<int>(blockDim.x)) {
    int row = at / p.channels, d = at % p.channels, position = first + row;
    int64_t offset =
        ((static_cast<int64_t>(sample) * p.positions + position) * heads + head) * p.channels + d;
    tile[row * pitch + d] = position < p.positions ? element(x, offset) : 0.0f;
  }
}

/// dots[r] = a[row of r]·b[lane].
__device__ __forceinline__ void dotRows(const float *a, const float *b, int pitch, int channels,
                                        int warp, int lane, float (&dots)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    dots[r] = 0.0f;
  for (int d = 0; d < channels; ++d) {
    float other = b[lane * pitch + d];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      dots[r] += a[(warp + r * kWarps) * pitch + d] * other;
  }
}

/// sums[r][c] += sum over columns j of factors[r] (of lane j)·b[j][lane + 32·c].
template <int kColumns>
__device__ __forceinline__ void addProducts(const float (&factors)[kRows], const float *b,
                                            int pitch, int channels, int lane,
                                            float (&sums)[kRows][kColumns]) {
  for (int j = 0; j < kTile; ++j) {
    float mine[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      mine[r] = __shfl_sync(0xffffffffu, factors[r], j);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      int d = lane + c * kWarp;
      float value = d < channels ? b[j * pitch + d] : 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        sums[r][c] += mine[r] * value;
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void writeRows(const Data &x, const Attention &p, int sample, int head,
                                          int heads, int first, int warp, int lane,
                                          const float (&rows)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int position = first + warp + r * kWarps;
    if (position >= p.positions)
      continue;
    int64_t offset =
        ((static_cast<int64_t>(sample) * p.positions + position) * heads + head) * p.channels;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (lane + c * kWarp < p.channels)
        setElement(x, offset + lane + c * kWarp, rows[r][c]);
  }
}

/// The keys visible to any of the block's queries.
__device__ __forceinline__ Span visibleToTile(const Attention &p, const int32_t *docs, int first,
                                              int lane) {
  int query = min(first + lane, p.positions - 1);
  Span span = visible(p, docs, query);
  return {__reduce_min_sync(0xffffffffu, span.begin), __reduce_max_sync(0xffffffffu, span.end)};
}

template <int kColumns>
__global__ void __launch_bounds__(kWarps *kWarp) attentionForward(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float *q = shared, *k = q + kTile * pitch, *v = k + kTile * pitch;
  int first = static_cast<int>(blockIdx.x) * kTile, head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), group = head / (p.heads / p.groups);
  const int32_t *docs = p.docs + static_cast<int64_t>(sample) * p.positions;
  loadTile(p.q, p, sample, head, p.heads, first, q, pitch);
  Span spans[kRows], all = visibleToTile(p, docs, first, lane);
  float largest[kRows], total[kRows], sums[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    spans[r] = visible(p, docs, min(first + warp + r * kWarps, p.positions - 1));
    largest[r] = -INFINITY, total[r] = 0.0f;
  }
  for (int key0 = all.begin / kTile * kTile; key0 < all.end; key0 += kTile) {
    __syncthreads();
    loadTile(p.k, p, sample, group, p.groups, key0, k, pitch);
    loadTile(p.v, p, sample, group, p.groups, key0, v, pitch);
    __syncthreads();
    float scores[kRows];
    dotRows(q, k, pitch, p.channels, warp, lane, scores);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = first + warp + r * kWarps;
      bool seen = key >= spans[r].begin && key < spans[r].end;
      float score = seen ? scores[r] * p.scale : -INFINITY;
      float newLargest = fmaxf(largest[r], warpMax(score));
      // Tiles before the first visible key change nothing.
      float shrink = newLargest == -INFINITY ? 1.0f : __expf(largest[r] - newLargest);
      float prob = seen ? __expf(score - newLargest) : 0.0f;
      total[r] = total[r] * shrink + warpSum(prob);
      largest[r] = newLargest;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        sums[r][c] *= shrink;
      if (p.mask.threshold > 0 && seen)
        prob *= p.mask.factor(p.samples[sample], dropoutRow(p, head, query),
                              static_cast<uint32_t>(key));
      scores[r] = prob;
    }
    addProducts(scores, v, pitch, p.channels, lane, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int query = first + warp + r * kWarps;
    if (lane == 0 && query < p.positions)
      p.lse[(static_cast<int64_t>(sample) * p.heads + head) * p.positions + query] =
          largest[r] + logf(total[r]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      sums[r][c] /= total[r];
  }
  writeRows(p.o, p, sample, head, p.heads, first, warp, lane, sums);
}

/// delta[b,n,s] = sum over channels of do·o; a warp a row.
__global__ void __launch_bounds__(256) rowProducts(const Attention p, int64_t rows) {
  awaitPrevious();
  int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  int lane = threadIdx.x % kWarp;
  if (row >= rows)
    return;
  float sum = 0;
  for (int d = lane; d < p.channels; d += kWarp)
    sum += element(p.dOut, row * p.channels + d) * element(p.o, row * p.channels + d);
  sum = warpSum(sum);
  int64_t head = row % p.heads, position = row / p.heads % p.positions;
  int64_t sample = row / p.heads / p.positions;
  if (lane == 0)
    p.delta[(sample * p.heads + head) * p.positions + position] = sum;
}

/// For one query and key: the probability after dropout, and the gradient of the scaled score.
struct Element {
  float prob, dScore;
};

__device__ __forceinline__ Element differentiate(const Attention &p, float score, float dProb,
                                                 float lse, float delta, int sample, int head,
                                                 int query, int key) {
  float prob = __expf(score * p.scale - lse);
  float factor = p.mask.threshold > 0 ? p.mask.factor(p.samples[sample], dropoutRow(p, head, query),
                                                      static_cast<uint32_t>(key))
                                      : 1.0f;
  return {prob * factor, p.scale * prob * (dProb * factor - delta)};
}

template <int kColumns>
__global__ void __launch_bounds__(kWarps *kWarp) attentionBwdQueries(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float *q = shared, *dOut = q + kTile * pitch, *k = dOut + kTile * pitch, *v = k + kTile * pitch;
  int first = static_cast<int>(blockIdx.x) * kTile, head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), group = head / (p.heads / p.groups);
  const int32_t *docs = p.docs + static_cast<int64_t>(sample) * p.positions;
  int64_t statistics = (static_cast<int64_t>(sample) * p.heads + head) * p.positions;
  loadTile(p.q, p, sample, head, p.heads, first, q, pitch);
  loadTile(p.dOut, p, sample, head, p.heads, first, dOut, pitch);
  Span spans[kRows], all = visibleToTile(p, docs, first, lane);
  float lse[kRows], delta[kRows], sums[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int query = min(first + warp + r * kWarps, p.positions - 1);
    spans[r] = visible(p, docs, query);
    lse[r] = p.lse[statistics + query], delta[r] = p.delta[statistics + query];
  }
  for (int key0 = all.begin / kTile * kTile; key0 < all.end; key0 += kTile) {
    __syncthreads();
    loadTile(p.k, p, sample, group, p.groups, key0, k, pitch);
    loadTile(p.v, p, sample, group, p.groups, key0, v, pitch);
    __syncthreads();
    float scores[kRows], dProbs[kRows];
    dotRows(q, k, pitch, p.channels, warp, lane, scores);
    dotRows(dOut, v, pitch, p.channels, warp, lane, dProbs);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = first + warp + r * kWarps;
      bool seen = key >= spans[r].begin && key < spans[r].end && query < p.positions;
      scores[r] =
          seen ? differentiate(p, scores[r], dProbs[r], lse[r], delta[r], sample, head, query, key)
                     .dScore
               : 0.0f;
    }
    addProducts(scores, k, pitch, p.channels, lane, sums);
  }
  writeRows(p.dq, p, sample, head, p.heads, first, warp, lane, sums);
}

template <int kColumns>
__global__ void __launch_bounds__(kWarps *kWarp) attentionBwdKeys(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float *k = shared, *v = k + kTile * pitch, *q = v + kTile * pitch, *dOut = q + kTile * pitch;
  int first = static_cast<int>(blockIdx.x) * kTile, group = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), perGroup = p.heads / p.groups;
  const int32_t *docs = p.docs + static_cast<int64_t>(sample) * p.positions;
  loadTile(p.k, p, sample, group, p.groups, first, k, pitch);
  loadTile(p.v, p, sample, group, p.groups, first, v, pitch);
  float dk[kRows][kColumns] = {}, dv[kRows][kColumns] = {};
  // The last query that sees a key of the tile, and the next.
  int end = p.window < 0 ? p.positions : min(p.positions, first + kTile + p.window);
  for (int head = group * perGroup; head < (group + 1) * perGroup; ++head) {
    int64_t statistics = (static_cast<int64_t>(sample) * p.heads + head) * p.positions;
    for (int query0 = p.causal ? first : 0; query0 < end; query0 += kTile) {
      __syncthreads();
      loadTile(p.q, p, sample, head, p.heads, query0, q, pitch);
      loadTile(p.dOut, p, sample, head, p.heads, query0, dOut, pitch);
      __syncthreads();
      int query = query0 + lane;
      Span span = {0, 0};
      float lse = 0, delta = 0;
      if (query < p.positions) {
        span = visible(p, docs, query);
        lse = p.lse[statistics + query], delta = p.delta[statistics + query];
      }
      float scores[kRows], dProbs[kRows];
      dotRows(k, q, pitch, p.channels, warp, lane, scores);
      dotRows(v, dOut, pitch, p.channels, warp, lane, dProbs);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        int key = first + warp + r * kWarps;
        Element e = {0.0f, 0.0f};
        if (key >= span.begin && key < span.end)
          e = differentiate(p, scores[r], dProbs[r], lse, delta, sample, head, query, key);
        scores[r] = e.prob, dProbs[r] = e.dScore;
      }
      addProducts(scores, dOut, pitch, p.channels, lane, dv);
      addProducts(dProbs, q, pitch, p.channels, lane, dk);
    }
  }
  writeRows(p.dk, p, sample, group, p.groups, first, warp, lane, dk);
  writeRows(p.dv, p, sample, group, p.groups, first, warp, lane, dv);
}

Attention describe(const Call &call, const Tensor &q, const Tensor &k, const Tensor &docs,
                   const Tensor &samples) {
  Attention p = {};
  p.q = dataOf(q), p.k = dataOf(k);
  p.docs = static_cast<const int32_t *>(docs.data);
  p.samples = static_cast<const int64_t *>(samples.data);
  p.positions = static_cast<int>(q.shape[1]), p.heads = static_cast<int>(q.shape[2]);
  p.groups = static_cast<int>(k.shape[2]), p.channels = static_cast<int>(q.shape[3]);
  p.firstHead = static_cast<uint32_t>(call.index * q.shape[2]);
  p.scale = static_cast<float>(call.attrs.scale);
  p.causal = call.attrs.causal, p.resetMask = call.attrs.reset_mask;
  p.window = static_cast<int>(std::clamp<int64_t>(call.attrs.window, -1, p.positions));
  p.mask = dropoutMask(call.attrs);
  return p;
}

/// Calls launch.operator()<channels/32, rounded up to a power of two>().
template <typename Launch> void forColumns(int channels, Launch launch) {
  if (channels <= 2 * kWarp)
    launch.template operator()<2>();
  else if (channels <= 4 * kWarp)
    launch.template operator()<4>();
  else
    launch.template operator()<8>();
}

template <typename Kernel>
void launchTiles(Kernel kernel, const Attention &p, int heads, int64_t samples, int tiles,
                 Queue &queue) {
  int shared = tiles * kTile * (p.channels + 1) * static_cast<int>(sizeof(float));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  dim3 grid(static_cast<unsigned>(ceilDiv(p.positions, kTile)), static_cast<unsigned>(heads),
            static_cast<unsigned>(samples));
  launchKernel(kernel, grid, kWarps * kWarp, static_cast<size_t>(shared), queue, p);
}

} // namespace

void launchPlainAttention(const Call &call) {
  Attention p = describe(call, call.in[0], call.in[1], call.in[3], call.in[4]);
  p.v = dataOf(call.in[2]), p.o = dataOf(call.out[0]);
  p.lse = static_cast<float *>(call.out[1].data);
  forColumns(p.channels, [&]<int kColumns>() {
    launchTiles(attentionForward<kColumns>, p, p.heads, call.in[0].shape[0], 3, queueOf(call));
  });
}

void launchPlainAttentionBwd(const Call &call, float *delta) {
  Attention p = describe(call, call.in[1], call.in[2], call.in[6], call.in[7]);
  p.dOut = dataOf(call.in[0]), p.v = dataOf(call.in[3]), p.o = dataOf(call.in[4]);
  p.lse = static_cast<float *>(call.in[5].data);
  p.dq = dataOf(call.out[0]), p.dk = dataOf(call.out[1]), p.dv = dataOf(call.out[2]);
  p.delta = delta;
  int64_t samples = call.in[1].shape[0], rows = samples * p.positions * p.heads;
  auto blocks = static_cast<unsigned>(ceilDiv(rows, 256 / kWarp));
  launchKernel(rowProducts, blocks, 256, 0, queueOf(call), p, rows);
  forColumns(p.channels, [&]<int kColumns>() {
    launchTiles(attentionBwdKeys<kColumns>, p, p.groups, samples, 4, queueOf(call));
    launchTiles(attentionBwdQueries<kColumns>, p, p.heads, samples, 4, queueOf(call));
  });
}

} // namespace shardc::kernels::cuda
