// batch.load: copies entry (step·microbatches + microbatch) mod slots of the ring that the host
// fills, from pinned memory straight into the results. Step and microbatch are read on the
// device if the call points to them, so that a captured graph works for every launch. An entry has
// tokens, labels i32, mask f32, positions, docs i32 of B·S each, samples i64[B] and, of slices of
// sequences, their places i32 of B·S, in 4-byte words. Mapping: one thread per word. Limited by
// PCIe or C2C, at 20 bytes per token: 80 KiB in 4.2 us of a captured step on an H200, 2026-11 (19
// GB/s, mostly bus latency).
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
  int64_t begin[kFields + 1]; ///< words of an entry
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

} // namespace

const Kernel kBatchLoad = {"batch_load_cuda", runBatchLoad, acceptsAs<&host::kBatchLoad>};

} // namespace shardc::kernels::cuda
