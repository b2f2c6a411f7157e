// batch.load copies entry (step·microbatches + microbatch) mod slots of the ring that the host
// fills, from pinned memory straight into the results. The kernel reads step and microbatch on the
// device if the call points to them, so that a captured graph is valid for every launch. An entry
// consists of tokens, labels i32, mask f32, positions and docs i32 of B·S each, samples i64[B] and,
// for slices of sequences, their places i32 of B·S, in 4-byte words. Mapping: one thread per word.
// Limited by PCIe or C2C, at 20 bytes per token: 80 KiB in 4.2 us of a captured step on an H200,
// 2026-11 (19 GB/s, mostly bus latency). roll has one thread per element; one block rolls a mask
// that keeps its sum.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "runtime/base/BatchFields.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kFields = batch::Fields;

struct Copy {
  const uint32_t *feed;
  const int64_t *launch; ///< step, microbatch, microbatches on the device, or null
  int64_t step, microbatch, microbatches;
  int64_t slots, words;
  uint32_t *to[kFields];
  int64_t begin[kFields + 1]; ///< first word of each field in an entry
};

__global__ void __launch_bounds__(256) copyEntry(const Copy p) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.words)
    return;
  int64_t step = p.launch ? p.launch[0] : p.step;
  int64_t microbatch = p.launch ? p.launch[1] : p.microbatch;
  int64_t microbatches = p.launch ? p.launch[2] : p.microbatches;
  int64_t entry = (step * microbatches + microbatch) % p.slots;
  uint32_t word = p.feed[entry * p.words + i];
#pragma unroll
  for (int f = 0; f < kFields; ++f)
    if (i >= p.begin[f] && i < p.begin[f + 1])
      p.to[f][i - p.begin[f]] = word;
}

void runBatchLoad(const Call &call) {
  const Tensor &feed = call.in[0];
  Copy p = {static_cast<const uint32_t *>(feed.data),
            call.launch,
            call.step,
            call.microbatch,
            call.microbatches,
            feed.shape[0],
            feed.cols()};
  for (int f = 0; f < kFields; ++f) {
    int64_t words = f < call.outCount ? call.out[f].numel() * dtypeBytes(call.out[f].dtype) / 4 : 0;
    p.to[f] = words > 0 ? static_cast<uint32_t *>(call.out[f].data) : nullptr;
    p.begin[f + 1] = p.begin[f] + words;
  }
  auto blocks = static_cast<unsigned>(ceilDiv(p.words, 256));
  launchKernel(copyEntry, blocks, 256, 0, queueOf(call), p);
}

struct Rolled {
  const uint32_t *x;
  uint32_t *y;
  int64_t numel, columns, by;
};

__device__ uint32_t rolled(const Rolled &p, int64_t i) {
  return i % p.columns + p.by < p.columns ? p.x[i + p.by] : 0U;
}

__global__ void __launch_bounds__(256) rollWords(const Rolled p) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.numel)
    p.y[i] = rolled(p, i);
}

__global__ void __launch_bounds__(1024) rollMask(const Rolled p) {
  awaitPrevious();
  double sums[2] = {}; // sums of x and of y
  for (int64_t i = threadIdx.x; i < p.numel; i += blockDim.x) {
    sums[0] += static_cast<double>(__uint_as_float(p.x[i]));
    sums[1] += static_cast<double>(__uint_as_float(rolled(p, i)));
  }
  blockSum(sums);
  auto factor = static_cast<float>(sums[0] / fmax(sums[1], 1.0));
  for (int64_t i = threadIdx.x; i < p.numel; i += blockDim.x)
    p.y[i] = __float_as_uint(__uint_as_float(rolled(p, i)) * factor);
}

void runRoll(const Call &call) {
  const Tensor &x = call.in[0];
  Rolled p = {static_cast<const uint32_t *>(x.data), static_cast<uint32_t *>(call.out[0].data),
              x.numel(), x.shape[1], call.attrs.by};
  if (call.attrs.per_token)
    launchKernel(rollMask, 1, 1024, 0, queueOf(call), p);
  else
    launchKernel(rollWords, static_cast<unsigned>(ceilDiv(p.numel, 256)), 256, 0, queueOf(call), p);
}

} // namespace

SHARDC_KERNEL(BatchLoad, acceptsAs, runBatchLoad);
SHARDC_KERNEL(Roll, acceptsAs, runRoll);

} // namespace shardc::kernels::cuda
