// dequantize: w[r,64·k + i] = scale·value of code i of the record q[r,k] (runtime/base/Nf4.h), in
// fp32, rounded once to f32, bf16 or f16. dequantize_nested: of records of 512 numbers, whose
// scales are in 8 bits (runtime/base/Nf4Scales.h). Mapping: a thread converts a chunk of eight
// numbers from 4 bytes of codes. The 16 values of codes are in shared memory, one per bank. The 256
// values of scales are in constant memory, where a warp reads at most four. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "runtime/base/Nf4Scales.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kCodes = 16;

struct Nf4Values {
  float of[kCodes];
};
struct ScaleValues {
  float of[kDynamicMap.size()];
};

/// The scale of a chunk of a record, and its codes.
struct Chunk {
  float scale;
  uint32_t codes;
};

struct Blocks {
  const Nf4Block *q;

  __device__ __forceinline__ Chunk chunk(int64_t i) const {
    const Nf4Block &block = q[i / Nf4Block::kNumbers];
    const auto *codes = reinterpret_cast<const uint32_t *>(block.codes);
    return {block.scale, codes[i % Nf4Block::kNumbers / kChunk]};
  }
};

struct NestedRecords {
  const Nf4Record *q;
  ScaleValues scales;

  __device__ __forceinline__ Chunk chunk(int64_t i) const {
    const Nf4Record &record = q[i / Nf4Record::kNumbers];
    const int64_t at = i % Nf4Record::kNumbers;
    const float value = scales.of[record.scales[at / Nf4Block::kNumbers]];
    const auto *codes = reinterpret_cast<const uint32_t *>(record.codes);
    return {__fadd_rn(__fmul_rn(value, record.group), record.offset), codes[at / kChunk]};
  }
};

template <Mode M, typename Records>
__global__ void __launch_bounds__(kThreads)
    openRecords(const __grid_constant__ Records records, const Data w, int64_t numel,
                const Nf4Values table) {
  awaitPrevious();
  __shared__ float values[kCodes];
  if (threadIdx.x < kCodes)
    values[threadIdx.x] = table.of[threadIdx.x];
  __syncthreads();
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
  if (i >= numel)
    return;
  const Chunk chunk = records.chunk(i);
  float v[kChunk];
#pragma unroll
  for (int j = 0; j < kChunk; ++j) // the upper half of a byte is its first number
    v[j] = values[chunk.codes >> (j / 2 * 8 + (j % 2 == 0 ? 4 : 0)) & 15u] * chunk.scale;
  store8<M>(w, i, kChunk, v);
}

template <typename Records> void open(const Call &call, const Records &records) {
  const Tensor &w = call.out[0];
  Nf4Values table = {};
  std::copy(kNf4Values.begin(), kNf4Values.end(), table.of);
  auto blocks = static_cast<unsigned>(ceilDiv(w.numel() / kChunk, kThreads));
  forMode(modeOf({&w}, 0), [&]<Mode M>() {
    launchKernel(openRecords<M, Records>, blocks, kThreads, 0, queueOf(call), records, dataOf(w),
                 w.numel(), table);
  });
}

void runDequantize(const Call &call) {
  open(call, Blocks{static_cast<const Nf4Block *>(call.in[0].data)});
}

void runDequantizeNested(const Call &call) {
  NestedRecords records = {static_cast<const Nf4Record *>(call.in[0].data), {}};
  std::copy(kDynamicMap.begin(), kDynamicMap.end(), records.scales.of);
  open(call, records);
}

} // namespace

SHARDC_KERNEL(Dequantize, acceptsAs, runDequantize);
SHARDC_KERNEL(DequantizeNested, acceptsAs, runDequantizeNested);

} // namespace shardc::kernels::cuda
