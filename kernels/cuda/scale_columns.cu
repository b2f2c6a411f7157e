// The scales of DoRA, with which columns of a product have trained magnitudes.
//   adapter_squares: q[o] = sum over i of (w[o,i] + scale·sum over j of b[o,j]·a[j,i])²
//   scale_columns: y[t,c] = x[t,c]·g[c], g[c] = m[c]/root(q[c]), with the root rounded to m's type,
//     and 0 where it is 0; 1 for columns of parts that are not kept
//   scale_columns_bwd: dx = dy·g; dm (+)= sum over t of dy·x/root, 0 of parts that are not kept
// Data f32, bf16 or f16 each, squares f32; all sums f32 in a fixed order.
// Mapping: a block has 8 rows of adapter_squares, and a thread 8 of every 2048 columns, for which
// it makes b·a in registers: 2·J operations for each element of w, so J (the rank) of 16 about
// meets the bandwidth. In scale_columns, a thread has a chunk of a row. In the gradient, a warp has
// 256 columns of rows at a fixed distance; warps and then blocks are added in order. Limited by
// memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/parts.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kRows = 8; ///< of a block of adapter_squares

struct Squares {
  Data w, b, a;
  float *squares;
  int64_t rows, cols, rank;
  float scale;
};

/// A block has kRows rows of w, so that each element of a is read once for all of them.
template <Mode M>
__global__ void __launch_bounds__(kSumWarps *kWarp) squareRows(const __grid_constant__ Squares p) {
  awaitPrevious();
  int64_t first = int64_t{blockIdx.x} * kRows;
  int count = static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  float sums[kRows] = {};
  for (int64_t c = int64_t{threadIdx.x} * kChunk; c < p.cols; c += kSumWarps * kWarp * kChunk) {
    int n = upToChunk(p.cols - c);
    float made[kRows][kChunk] = {};
    for (int64_t j = 0; j < p.rank; ++j) {
      float a[kChunk];
      load8<M>(p.a, j * p.cols + c, n, a);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float b = r < count ? element(p.b, (first + r) * p.rank + j) : 0.0f;
#pragma unroll
        for (int k = 0; k < kChunk; ++k)
          made[r][k] += b * a[k];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count)
        continue;
      float w[kChunk];
      load8<M>(p.w, (first + r) * p.cols + c, n, w);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        float v = w[k] + p.scale * made[r][k];
        sums[r] += v * v;
      }
    }
  }
  blockSum(sums);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (threadIdx.x == 0 && r < count)
      p.squares[first + r] = sums[r];
}

void runSquares(const Call &call) {
  const Tensor &w = call.in[0], &b = call.in[1], &a = call.in[2];
  Squares p = {dataOf(w),  dataOf(b),  dataOf(a),  static_cast<float *>(call.out[0].data),
               w.shape[0], w.shape[1], b.shape[1], static_cast<float>(call.attrs.scale)};
  auto blocks = static_cast<unsigned>(ceilDiv(p.rows, kRows));
  forMode(modeOf({&w, &a}, p.cols), [&]<Mode M>() {
    launchKernel(squareRows<M>, blocks, kSumWarps * kWarp, 0, queueOf(call), p);
  });
}

/// The scales of columns.
struct Scales {
  Data m;
  const float *squares;
  PartsOfRows parts;

  /// The scale of a column, and 1/root for the gradient of its magnitude.
  __device__ __forceinline__ float2 of(int64_t c) const {
    if (parts.placeOf(c) < 0)
      return {1.0f, 0.0f};
    float root = rounded(m, sqrtf(squares[c]));
    return root == 0.0f ? float2{0.0f, 0.0f} : float2{element(m, c) / root, 1.0f / root};
  }
};

Scales scalesOf(const Call &call, int first) {
  return {dataOf(call.in[first]), static_cast<const float *>(call.in[first + 1].data),
          partsOf(call.attrs, call.in[first].numel())};
}

/// y = x, each column times its scale.
struct ScaleOp {
  Data x, y;
  Scales scales;
  int64_t cols;

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float v[kChunk];
    load8<M>(x, row * cols + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] *= j < n ? scales.of(c + j).x : 0.0f;
    store8<M>(y, row * cols + c, n, v);
  }
};

void runScale(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  ScaleOp op = {dataOf(x), dataOf(y), scalesOf(call, 1), x.cols()};
  launchRows(call, modeOf({&x, &y}, x.cols()), op, x.rows(), x.cols());
}

struct Backward {
  Data dy, x, dx;
  Scales scales;
  float *partials; ///< [blocks along rows, cols]
  int64_t rows, cols;
};

/// As in norm_part.cu, each block leaves partial sums of the columns' gradients, which another
/// kernel adds in order.
template <Mode M>
__global__ void __launch_bounds__(kSumWarps *kWarp)
    scaleBackward(const __grid_constant__ Backward p) {
  awaitPrevious();
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t c = int64_t{blockIdx.x} * kSumColumns + lane * kChunk;
  int n = c < p.cols ? upToChunk(p.cols - c) : 0;
  float scale[kChunk] = {}, inverse[kChunk] = {}, dm[kChunk] = {};
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (j < n) {
      float2 both = p.scales.of(c + j);
      scale[j] = both.x, inverse[j] = both.y;
    }
  int64_t step = int64_t{gridDim.y} * kSumWarps;
  for (int64_t row = int64_t{blockIdx.y} * kSumWarps + warp; n > 0 && row < p.rows; row += step) {
    float dy[kChunk], x[kChunk];
    load8<M>(p.dy, row * p.cols + c, n, dy);
    load8<M>(p.x, row * p.cols + c, n, x);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      dm[j] += dy[j] * x[j];
      dy[j] *= scale[j];
    }
    store8<M>(p.dx, row * p.cols + c, n, dy);
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    dm[j] *= inverse[j];
  addWarps(dm, p.partials, p.cols);
}

void runScaleBwd(const Call &call, const RowSumBuffers &buffers) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  Backward p = {dataOf(dy),       dataOf(x), dataOf(dx), scalesOf(call, 2),
                buffers.partials, x.rows(),  x.cols()};
  dim3 grid = sumGrid(x);
  forMode(modeOf({&dy, &x, &dx}, p.cols), [&]<Mode M>() {
    launchKernel(scaleBackward<M>, grid, kSumWarps * kWarp, 0, queueOf(call), p);
  });
  ColumnTargets targets = {{dataOf(call.out[1])}};
  launchAddPartials(call, p.partials, static_cast<int>(grid.y), 1, p.cols, targets);
}

} // namespace

SHARDC_KERNEL(AdapterSquares, acceptsAs, runSquares);
SHARDC_KERNEL(ScaleColumns, acceptsAs, runScale);
SHARDC_KERNEL(ScaleColumnsBwd, acceptsAs, withBuffers<runScaleBwd>);

} // namespace shardc::kernels::cuda
