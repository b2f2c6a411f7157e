// amax: m = the largest magnitude in x. quantize: q = x·m in 8 bits, saturated, with m =
// limit/amax, scale = 1/m, t = qᵀ; what kernels/host/Quantize.cpp says, to the bit. x is f32, bf16
// or f16. Mapping: amax compares bits without sign, whose order is that of the numbers, over a grid
// that fills the device; maxima of blocks meet in one atomic. quantize without a transpose moves
// chunks of 8 elements. With one, a block takes a tile of 128 rows by 64 columns: a thread converts
// 4 rows of 8 columns, and the tile is turned in shared memory as words of 4 rows, so that rows of
// t are written 128 bytes at a time. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize.cuh"

namespace shardc::kernels::cuda {
namespace {

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

struct QuantizeOp {
  Data x;
  Target to;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk], multiplier = multiplierOf(*to.amax, to.isE5M2);
    load8<M>(x, i, n, v);
    storeRow<M>(to.q, i, n, convert(to.isE5M2, multiplier, v));
    if (i == 0)
      *to.scale = reciprocal(multiplier);
  }
};

template <Mode M>
__global__ void __launch_bounds__(256)
    quantizeTile(const Data x, const Target to, int64_t rows, int64_t cols) {
  awaitPrevious();
  __shared__ TurnedTile tile;
  float multiplier = multiplierOf(*to.amax, to.isE5M2);
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  int64_t firstRow = static_cast<int64_t>(blockIdx.y) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.x) * kTileCols;
  int64_t col = firstCol + chunk * kChunk;
  int n = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  uint2 codes[kRowsEach] = {};
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = firstRow + group * kRowsEach + r;
    if (row < rows && n > 0) {
      float v[kChunk];
      load8<M>(x, row * cols + col, n, v);
      codes[r] = convert(to.isE5M2, multiplier, v);
      if (to.q)
        storeRow<M>(to.q, row * cols + col, n, codes[r]);
    }
  }
  tile.put(group, chunk, codes);
  __syncthreads();
  tile.store(to.t, rows, cols, firstRow, firstCol);
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
  forMode(modeOf({&x, &q}, cols), [&]<Mode M>() {
    launchKernel(quantizeTile<M>, gridOfTiles(rows, cols), 256, 0, queueOf(call), dataOf(x), to,
                 rows, cols);
  });
}

} // namespace

const Kernel kAmax = {"amax_cuda", runAmax, acceptsAs<&host::kAmax>};
const Kernel kQuantize = {"quantize_cuda", runQuantize, acceptsTiles<&host::kQuantize>};

} // namespace shardc::kernels::cuda
