// amax: m = the largest magnitude in x. quantize: q = x·m in 8 bits, saturated, with m =
// limit/amax, scale = 1/m, t = qᵀ; what kernels/host/Quantize.cpp says, to the bit. x is f32, bf16
// or f16. Mapping: amax compares bits without sign, whose order is that of the numbers, over a grid
// that fills the device; maxima of blocks meet in one atomic. quantize without a transpose moves
// chunks of 8 elements. With one, a block takes a tile of 128 rows by 64 columns: a thread converts
// 4 rows of 8 columns, and the tile is turned in shared memory as words of 4 rows, so that rows of
// t are written 128 bytes at a time. Limited by memory.
#include <cuda_fp8.h>

#include <cfloat>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr unsigned kNan = 0x7fc00000u;

template <Mode M>
__global__ void __launch_bounds__(256) findLargest(const Data x, int64_t numel, unsigned *largest) {
  awaitPrevious();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  unsigned most = 0;
  float v[kChunk];
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
       i < numel; i += step) {
    load8<M>(x, i, static_cast<int>(numel - i < kChunk ? numel - i : kChunk), v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      most = max(most, __float_as_uint(v[j]) & 0x7fffffffu);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  __shared__ unsigned parts[256 / kWarp];
  if (threadIdx.x % kWarp == 0)
    parts[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    most = __reduce_max_sync(0xffffffffu, threadIdx.x < 256 / kWarp ? parts[threadIdx.x] : 0u);
    if (threadIdx.x == 0)
      atomicMax(largest, most > 0x7f800000u ? kNan : most); // one NaN for all
  }
}

void runAmax(const Call &call) {
  constexpr int64_t kBlocksMax = 132 * 8;
  const Tensor &x = call.in[0];
  Queue &queue = queueOf(call);
  auto *largest = static_cast<unsigned *>(call.out[0].data);
  static_cast<void>(cudaMemsetAsync(largest, 0, sizeof *largest, queue));
  queue.noteOther();
  auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), kBlocksMax));
  forMode(modeOf({&x}, 0), [&]<Mode M>() {
    launchKernel(findLargest<M>, blocks, 256, 0, queue, dataOf(x), x.numel(), largest);
  });
}

/// Numbers of 8 bits, and what they are made with.
struct Target {
  uint8_t *q; ///< null: only the transpose is written
  uint8_t *t; ///< null: there is none
  float *scale;
  const float *amax;
  bool isE5M2;
};

__device__ __forceinline__ float multiplierOf(const Target &to) {
  float amax = *to.amax;
  if (!isfinite(amax))
    return __uint_as_float(kNan);
  if (amax == 0)
    return 1.0f;
  return fminf(__fdiv_rn(to.isE5M2 ? 57344.0f : 448.0f, amax), FLT_MAX);
}

/// With the host's NaN: a division here makes another one.
__device__ __forceinline__ float reciprocal(float multiplier) {
  return isnan(multiplier) ? __uint_as_float(kNan) : __fdiv_rn(1.0f, multiplier);
}

/// Eight numbers in their order.
__device__ __forceinline__ uint2 convert(const Target &to, float multiplier,
                                         const float (&v)[kChunk]) {
  __nv_fp8_interpretation_t format = to.isE5M2 ? __NV_E5M2 : __NV_E4M3;
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < kChunk; j += 2) {
    __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(
        make_float2(v[j] * multiplier, v[j + 1] * multiplier), __NV_SATFINITE, format);
    words[j / 4] |= static_cast<uint32_t>(pair) << (j % 4 * 8);
  }
  return {words[0], words[1]};
}

__device__ __forceinline__ uint8_t byteOf(uint2 codes, int j) {
  return static_cast<uint8_t>((j < 4 ? codes.x : codes.y) >> (j % 4 * 8));
}

template <Mode M>
__device__ __forceinline__ void storeRow(uint8_t *to, int64_t at, int n, uint2 codes) {
  if (M != Mode::Scalar && n == kChunk) {
    *reinterpret_cast<uint2 *>(to + at) = codes;
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (j < n)
      to[at + j] = byteOf(codes, j);
}

struct QuantizeOp {
  Data x;
  Target to;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk], multiplier = multiplierOf(to);
    load8<M>(x, i, n, v);
    storeRow<M>(to.q, i, n, convert(to, multiplier, v));
    if (i == 0)
      *to.scale = reciprocal(multiplier);
  }
};

constexpr int kTileRows = 128, kTileCols = 64, kRowsEach = 4;

template <Mode M>
__global__ void __launch_bounds__(256)
    quantizeTile(const Data x, const Target to, int64_t rows, int64_t cols) {
  awaitPrevious();
  // One word is 4 rows of a column; rows of words are padded against conflicts.
  __shared__ uint32_t words[kTileCols][kTileRows / kRowsEach + 1];
  float multiplier = multiplierOf(to);
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  int64_t firstRow = static_cast<int64_t>(blockIdx.x) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.y) * kTileCols;
  int64_t col = firstCol + chunk * kChunk;
  int n = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  uint2 codes[kRowsEach] = {};
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = firstRow + group * kRowsEach + r;
    if (row < rows && n > 0) {
      float v[kChunk];
      load8<M>(x, row * cols + col, n, v);
      codes[r] = convert(to, multiplier, v);
      if (to.q)
        storeRow<M>(to.q, row * cols + col, n, codes[r]);
    }
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    uint32_t word = 0;
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
      word |= static_cast<uint32_t>(byteOf(codes[r], j)) << (8 * r);
    words[chunk * kChunk + j][group] = word;
  }
  __syncthreads();
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t row = firstRow + lane * kRowsEach;
  bool isWhole = rows % kRowsEach == 0 && reinterpret_cast<uintptr_t>(to.t) % kRowsEach == 0;
  for (int c = static_cast<int>(threadIdx.x) / kWarp; c < kTileCols; c += 256 / kWarp) {
    if (firstCol + c >= cols || row >= rows)
      continue;
    uint8_t *at = to.t + (firstCol + c) * rows + row;
    uint32_t word = words[c][lane];
    if (isWhole) {
      *reinterpret_cast<uint32_t *>(at) = word;
      continue;
    }
    for (int r = 0; r < kRowsEach && row + r < rows; ++r)
      at[r] = static_cast<uint8_t>(word >> (8 * r));
  }
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *to.scale = reciprocal(multiplier);
}

void runQuantize(const Call &call) {
  const Tensor &x = call.in[0], &q = call.out[0];
  auto *first = static_cast<uint8_t *>(q.data);
  bool transposed = call.attrs.transposed;
  Target to = {};
  to.q = transposed ? nullptr : first;
  to.t = transposed          ? first
         : call.outCount > 2 ? static_cast<uint8_t *>(call.out[2].data)
                             : nullptr;
  to.scale = static_cast<float *>(call.out[1].data);
  to.amax = static_cast<const float *>(call.in[1].data);
  to.isE5M2 = q.dtype == DType::F8E5M2;
  if (!to.t)
    return launchFlat(call, modeOf({&x, &q}, 0), QuantizeOp{dataOf(x), to}, x.numel());
  int64_t rows = x.rows(), cols = x.cols();
  dim3 grid(static_cast<unsigned>(ceilDiv(rows, kTileRows)),
            static_cast<unsigned>(ceilDiv(cols, kTileCols)));
  forMode(modeOf({&x, &q}, cols), [&]<Mode M>() {
    launchKernel(quantizeTile<M>, grid, 256, 0, queueOf(call), dataOf(x), to, rows, cols);
  });
}

const char *acceptsQuantize(const Call &call) {
  if (const char *reason = host::kQuantize.accepts(call))
    return reason;
  // The columns of the grid.
  return call.in[0].cols() > int64_t{kTileCols} * 65535 ? "a row has 2^22 elements or more"
                                                        : nullptr;
}

} // namespace

const Kernel kAmax = {"amax_cuda", runAmax, acceptsAs<&host::kAmax>};
const Kernel kQuantize = {"quantize_cuda", runQuantize, acceptsQuantize};

} // namespace shardc::kernels::cuda
