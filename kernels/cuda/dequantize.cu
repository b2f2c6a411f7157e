// dequantize: w[r,64·k + i] = scale·value of code i of the record q[r,k] (runtime/base/Nf4.h), in
// fp32, rounded once to f32, bf16 or f16. Mapping: a thread converts a chunk of eight numbers from
// 4 bytes of codes. The 16 values of codes are in shared memory, one per bank. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "runtime/base/Nf4.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kCodes = 16;

struct Nf4Values {
  float of[kCodes];
};

template <Mode M>
__global__ void __launch_bounds__(kThreads)
    openBlocks(const Nf4Block *q, const Data w, int64_t numel, const Nf4Values table) {
  awaitPrevious();
  __shared__ float values[kCodes];
  if (threadIdx.x < kCodes)
    values[threadIdx.x] = table.of[threadIdx.x];
  __syncthreads();
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
  if (i >= numel)
    return;
  const Nf4Block &block = q[i / Nf4Block::kNumbers];
  uint32_t codes = reinterpret_cast<const uint32_t *>(block.codes)[i % Nf4Block::kNumbers / kChunk];
  float v[kChunk];
#pragma unroll
  for (int j = 0; j < kChunk; ++j) // the upper half of a byte is its first number
    v[j] = values[codes >> (j / 2 * 8 + (j % 2 == 0 ? 4 : 0)) & 15u] * block.scale;
  store8<M>(w, i, kChunk, v);
}

void runDequantize(const Call &call) {
  const Tensor &w = call.out[0];
  Nf4Values table = {};
  std::copy(kNf4Values.begin(), kNf4Values.end(), table.of);
  const auto *q = static_cast<const Nf4Block *>(call.in[0].data);
  auto blocks = static_cast<unsigned>(ceilDiv(w.numel() / kChunk, kThreads));
  forMode(modeOf({&w}, 0), [&]<Mode M>() {
    launchKernel(openBlocks<M>, blocks, kThreads, 0, queueOf(call), q, dataOf(w), w.numel(), table);
  });
}

} // namespace

const Kernel kDequantize = {"dequantize_cuda", runDequantize, acceptsAs<&host::kDequantize>};

} // namespace shardc::kernels::cuda
