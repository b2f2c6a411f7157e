// preference_loss: losses f32[T], mask f32[B,S], docs i32[B,S], reference f32[B,S]? -> pairs
// f32[B], weights f32[T], n f32[1], metrics f32[B,8]. PairLoss.h has the formulas. Sums are fp64 in
// a fixed order. Mapping: a block per sequence lists where documents begin; then each of its warps
// processes pairs in a loop. A second kernel counts the pairs of all sequences. Limited by latency:
// a sequence is read three times.
#include "kernels/api/PairLoss.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;

struct Pairs {
  const float *losses, *mask, *reference; ///< reference: null if the loss has none
  const int32_t *docs;
  int32_t *begins; ///< i32[B,S+1]: beginnings of a sequence's documents, then its size
  float *pairs, *weights, *n, *metrics;
  int64_t batch, size;
  PairSettings settings;
};

/// Writes where documents of the block's sequence begin, and returns how many there are.
__device__ int listDocuments(const Pairs &p, const int32_t *docs, int32_t *begins) {
  __shared__ int counts[kWarps];
  __shared__ int before;
  const int warp = threadIdx.x / kWarp, place = threadIdx.x % kWarp;
  if (threadIdx.x == 0)
    before = 0;
  __syncthreads();
  for (int64_t first = 0; first < p.size; first += kThreads) {
    int64_t t = first + threadIdx.x;
    bool begin = t < p.size && (t == 0 || docs[t] != docs[t - 1]);
    unsigned all = __ballot_sync(~0u, begin);
    if (place == 0)
      counts[warp] = __popc(all);
    __syncthreads();
    int at = before + __popc(all & ((1u << place) - 1));
    for (int w = 0; w < warp; ++w)
      at += counts[w];
    if (begin)
      begins[at] = static_cast<int32_t>(t);
    __syncthreads();
    if (threadIdx.x == 0)
      for (int w = 0; w < kWarps; ++w)
        before += counts[w];
    __syncthreads();
  }
  int documents = before;
  if (threadIdx.x == 0)
    begins[documents] = static_cast<int32_t>(p.size);
  __syncthreads();
  return documents;
}

/// Sums of the answer [begin, end) of a sequence. A whole warp calls it; all its threads get the
/// sums.
__device__ Answer answerOf(const Pairs &p, int64_t row, int begin, int end) {
  Answer sum;
  for (int64_t t = row + begin + threadIdx.x % kWarp; t < row + end; t += kWarp) {
    auto loss = static_cast<double>(p.losses[t]);
    bool counts = p.mask[t] != 0.0f;
    sum.loss += counts ? loss : 0;
    sum.tokens += counts ? 1 : 0;
    sum.lossOfAll += loss;
    sum.reference += p.reference == nullptr ? 0 : static_cast<double>(p.reference[t]);
  }
  sum.loss = warpSum(sum.loss);
  sum.tokens = warpSum(sum.tokens);
  sum.lossOfAll = warpSum(sum.lossOfAll);
  sum.reference = warpSum(sum.reference);
  sum.tokensOfAll = end - begin;
  return sum;
}

__device__ void weigh(const Pairs &p, int64_t row, int begin, int end, double counted, double all) {
  for (int64_t t = row + begin + threadIdx.x % kWarp; t < row + end; t += kWarp)
    p.weights[t] = static_cast<float>(all + (p.mask[t] != 0.0f ? counted : 0));
}

/// A block has one sequence. Each warp has every kWarps-th pair of documents, and the warps' sums
/// are added in order.
__global__ void __launch_bounds__(kThreads) loseOfPairs(const Pairs p) {
  awaitPrevious();
  __shared__ double sums[kWarps][kPairMetrics + 1];
  const int64_t row = int64_t{blockIdx.x} * p.size;
  int32_t *begins = p.begins + int64_t{blockIdx.x} * (p.size + 1);
  const int documents = listDocuments(p, p.docs + row, begins), warp = threadIdx.x / kWarp;
  double own[kPairMetrics + 1] = {};
  for (int d = 2 * warp; d < documents; d += 2 * kWarps) {
    int begin = begins[d], middle = begins[d + 1];
    int end = d + 1 < documents ? begins[d + 2] : middle;
    Answer chosen = answerOf(p, row, begin, middle), rejected = answerOf(p, row, middle, end);
    PairLoss pair;
    // A pair in which nothing of an answer counts has no loss, and weights of 0.
    if (chosen.tokens > 0 && rejected.tokens > 0)
      pair = pairLossOf(p.settings, chosen, rejected);
    weigh(p, row, begin, middle, pair.chosen, pair.all);
    weigh(p, row, middle, end, pair.rejected, 0);
    for (int i = 0; i < kPairMetrics; ++i)
      own[i] += pair.metrics[i];
    own[kPairMetrics] += pair.loss;
  }
  if (threadIdx.x % kWarp == 0)
    for (int i = 0; i <= kPairMetrics; ++i)
      sums[warp][i] = own[i];
  __syncthreads();
  if (threadIdx.x > kPairMetrics)
    return;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w)
    sum += sums[w][threadIdx.x];
  if (threadIdx.x == kPairMetrics)
    p.pairs[blockIdx.x] = static_cast<float>(sum);
  else
    p.metrics[blockIdx.x * kPairMetrics + threadIdx.x] = static_cast<float>(sum);
}

__global__ void countPairs(const Pairs p) {
  awaitPrevious();
  double count = 0;
  for (int64_t row = threadIdx.x; row < p.batch; row += kWarp)
    count += static_cast<double>(p.metrics[row * kPairMetrics + kPairs]);
  count = warpSum(count);
  if (threadIdx.x == 0)
    *p.n = static_cast<float>(count);
}

struct Buffers {
  int32_t *begins;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &mask = call.in[1];
    begins = scratch.take<int32_t>(mask.shape[0] * (mask.shape[1] + 1));
  }
};

void runPreferenceLoss(const Call &call, const Buffers &buffers) {
  auto floats = [](const Tensor &tensor) { return static_cast<float *>(tensor.data); };
  const Tensor &mask = call.in[1];
  Pairs p = {floats(call.in[0]),
             floats(mask),
             call.inCount > 3 ? floats(call.in[3]) : nullptr,
             static_cast<const int32_t *>(call.in[2].data),
             buffers.begins,
             floats(call.out[0]),
             floats(call.out[1]),
             floats(call.out[2]),
             floats(call.out[3]),
             mask.shape[0],
             mask.shape[1],
             pairSettingsOf(call)};
  launchKernel(loseOfPairs, static_cast<unsigned>(p.batch), kThreads, 0, queueOf(call), p);
  launchKernel(countPairs, 1, kWarp, 0, queueOf(call), p);
}

} // namespace

SHARDC_KERNEL(PreferenceLoss, acceptsAs, withBuffers<runPreferenceLoss>);

} // namespace shardc::kernels::cuda
