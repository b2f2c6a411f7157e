// rmsnorm if ranks have parts of the columns of each row, and sums over the columns of a row.
//   dot_rows: y[r] = scale·(sum over c of a[r,c]·b[r,c]·w[c]); without w, its factor is 1
//   rmsnorm_part: y = x·rstd·w, rstd[r] = 1/sqrt(squares[r] + eps), where squares[r] is the mean of
//     the squares of the whole row
//   rmsnorm_part_bwd: dx = rstd·(dy·w - x·rstd²·dots), where dots[r] is the mean of dy·w·x over the
//     whole row; dw (+)= sum over rows of dy·x·rstd
// Data are f32, bf16 or f16 each, squares and dots f32. Sums over columns are fp64, sums over rows
// f32 in a fixed order. Mapping: in dot_rows, a warp processes a row. In rmsnorm_part, a thread
// processes a chunk of a row. In the gradient, a warp processes 256 columns of every n-th row and
// keeps their sums in registers; the warps of a block are added in order, and a second kernel adds
// the blocks in order. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

/// What to add to a stored weight: 1 if weights are zero-centered.
float plusOf(const Call &call) { return call.attrs.zero_centered ? 1.0f : 0.0f; }

struct Products {
  Data a, b, w, y;
  int64_t rows, cols;
  double scale;
  float plus;
  bool hasWeight;
};

template <Mode M>
__global__ void __launch_bounds__(kSumWarps *kWarp) dotRows(const __grid_constant__ Products p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kSumWarps + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  double sum = 0;
#pragma unroll 4
  for (int64_t c = threadIdx.x % kWarp * kChunk; c < p.cols; c += kSumColumns) {
    float a[kChunk], b[kChunk], w[kChunk] = {}, part = 0;
    load8<M>(p.a, row * p.cols + c, upToChunk(p.cols - c), a);
    load8<M>(p.b, row * p.cols + c, upToChunk(p.cols - c), b);
    if (p.hasWeight)
      load8<M>(p.w, c, upToChunk(p.cols - c), w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      part += p.hasWeight ? a[j] * (w[j] + p.plus) * b[j] : a[j] * b[j];
    sum += static_cast<double>(part);
  }
  sum = warpSum(sum);
  if (threadIdx.x % kWarp == 0)
    setElement(p.y, row, static_cast<float>(sum * p.scale));
}

void runDotRows(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &w = call.inCount > 2 ? call.in[2] : a;
  Products p = {dataOf(a), dataOf(b),        dataOf(w),    dataOf(call.out[0]), a.rows(),
                a.cols(),  call.attrs.scale, plusOf(call), call.inCount > 2};
  auto blocks = static_cast<unsigned>(ceilDiv(p.rows, kSumWarps));
  forMode(modeOf({&a, &b, &w}, p.cols), [&]<Mode M>() {
    launchKernel(dotRows<M>, blocks, kSumWarps * kWarp, 0, queueOf(call), p);
  });
}

/// y = x · rstd · weight, where rstd follows from the mean squares of whole rows.
struct NormOp {
  Data x, w, y;
  const float *squares;
  int64_t cols;
  float eps, plus;

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float v[kChunk], weight[kChunk], rstd = 1.0f / sqrtf(squares[row] + eps);
    load8<M>(x, row * cols + c, n, v);
    load8<M>(w, c, n, weight);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = v[j] * rstd * (weight[j] + plus);
    store8<M>(y, row * cols + c, n, v);
  }
};

void runRmsNormPart(const Call &call) {
  const Tensor &x = call.in[0], &w = call.in[1], &y = call.out[0];
  NormOp op = {dataOf(x),   dataOf(w),
               dataOf(y),   static_cast<const float *>(call.in[2].data),
               x.cols(),    static_cast<float>(call.attrs.eps),
               plusOf(call)};
  launchRows(call, modeOf({&x, &w, &y}, x.cols()), op, x.rows(), x.cols());
}

struct Backward {
  Data dy, x, w, dx;
  const float *squares, *dots;
  float *partials; ///< [blocks along rows, cols]
  int64_t rows, cols;
  float eps, plus;
};

/// A block has kSumColumns columns and every gridDim.y-th row of each warp. Each thread adds dw
/// for its columns over its rows; the warps' sums are added in a fixed order to a partial sum of
/// the block.
template <Mode M>
__global__ void __launch_bounds__(kSumWarps *kWarp)
    normBackward(const __grid_constant__ Backward p) {
  awaitPrevious();
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t c = int64_t{blockIdx.x} * kSumColumns + lane * kChunk;
  int n = c < p.cols ? upToChunk(p.cols - c) : 0;
  float w[kChunk] = {}, dw[kChunk] = {};
  if (n > 0)
    load8<M>(p.w, c, n, w);
  int64_t step = int64_t{gridDim.y} * kSumWarps;
  for (int64_t row = int64_t{blockIdx.y} * kSumWarps + warp; n > 0 && row < p.rows; row += step) {
    float dy[kChunk], x[kChunk], rstd = 1.0f / sqrtf(p.squares[row] + p.eps);
    float mean = p.dots[row] * rstd;
    load8<M>(p.dy, row * p.cols + c, n, dy);
    load8<M>(p.x, row * p.cols + c, n, x);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      float h = x[j] * rstd;
      dw[j] += j < n ? dy[j] * h : 0.0f;
      x[j] = rstd * (dy[j] * (w[j] + p.plus) - h * mean);
    }
    store8<M>(p.dx, row * p.cols + c, n, x);
  }
  addWarps(dw, p.partials, p.cols);
}

/// The squares and dot products of whole rows come from operands, since this rank has only a part
/// of each row.
void runRmsNormPartBwd(const Call &call, const RowSumBuffers &buffers) {
  const Tensor &dy = call.in[0], &x = call.in[1], &w = call.in[2], &dx = call.out[0];
  Backward p = {dataOf(dy), dataOf(x), dataOf(w), dataOf(dx)};
  p.squares = static_cast<const float *>(call.in[3].data);
  p.dots = static_cast<const float *>(call.in[4].data);
  p.partials = buffers.partials, p.rows = x.rows(), p.cols = x.cols();
  p.eps = static_cast<float>(call.attrs.eps), p.plus = plusOf(call);
  dim3 grid = sumGrid(x);
  forMode(modeOf({&dy, &x, &w, &dx}, p.cols), [&]<Mode M>() {
    launchKernel(normBackward<M>, grid, kSumWarps * kWarp, 0, queueOf(call), p);
  });
  if (call.outCount == 1)
    return;
  ColumnTargets targets = {{dataOf(call.out[1])}};
  launchAddPartials(call, p.partials, static_cast<int>(grid.y), 1, p.cols, targets);
}

} // namespace

SHARDC_KERNEL(DotRows, acceptsAs, runDotRows);
SHARDC_KERNEL(RmsNormPart, acceptsAs, runRmsNormPart);
SHARDC_KERNEL(RmsNormPartBwd, acceptsAs, withBuffers<runRmsNormPartBwd>);

} // namespace shardc::kernels::cuda
