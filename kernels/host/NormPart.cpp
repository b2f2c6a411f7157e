// rmsnorm if ranks have parts of the columns of each row. rmsnorm_part: y = x·rstd·w (w + 1 if
// zero_centered) with rstd[r] = 1/sqrt(squares[r] + eps); x[R,C], w[C], squares[R,1], which has the
// mean of the squares of the whole row. rmsnorm_part_bwd: dx = rstd·(dy·w - x·rstd²·dots), where
// dots[R,1] has the mean of dy·w·x over the whole row; dw = sum over rows of dy·x·rstd, which may
// accumulate. Data are f32, bf16 or f16 each, squares and dots are f32; sums over rows are fp64.
// Limited by memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

struct Buffers {
  float *weight, *x, *y;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&weight, &x, &y})
      *buffer = scratch.take<float>(cols);
  }
};

/// 1/sqrt(mean + eps) of a row.
float rstdOfMean(const Call &call, const Tensor &squares, int64_t row) {
  double mean = static_cast<const float *>(squares.data)[row];
  return static_cast<float>(1.0 / std::sqrt(mean + call.attrs.eps));
}

void runRmsNormPart(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const float *w = normWeight(call, call.in[1], buffers.weight);
  for (int64_t row = 0, rows = x.rows(), n = x.cols(); row < rows; ++row) {
    float *to = targetF32(y, row * n, buffers.y);
    scaleRow(readF32(x, row * n, n, buffers.x), w, rstdOfMean(call, call.in[2], row), n, to);
    writeF32(y, row * n, n, to);
  }
}

void runRmsNormPartBwd(const Call &call, const RmsNormGradient &buffers) {
  int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  const float *w = normWeight(call, call.in[2], buffers.weight);
  const float *dots = static_cast<const float *>(call.in[4].data);
  std::fill_n(buffers.dw, n, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    float rstd = rstdOfMean(call, call.in[3], row);
    buffers.addRow(call, row, w, rstd);
    subtractMean(buffers.g, buffers.h, dots[row] * rstd, rstd, n, buffers.dx);
    writeF32(call.out[0], row * n, n, buffers.dx);
  }
  if (call.outCount > 1)
    writeSums(call.out[1], 0, n, buffers.dw, buffers.g);
}

} // namespace

const Kernel kRmsNormPart = kernelOf<OpKind::RmsNormPart>(withBuffers<runRmsNormPart>);
const Kernel kRmsNormPartBwd =
    kernelOf<OpKind::RmsNormPartBwd, nullptr, 2>(withBuffers<runRmsNormPartBwd>);

} // namespace shardc::kernels::host
