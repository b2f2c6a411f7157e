// rmsnorm over the last dimension: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd·w (w + 1 if
// zero_centered). Data are f32, bf16 or f16 each, rstd is f32; sums over a row and over rows are
// fp64. rmsnorm_again: y from the saved rstd.
// Backward, with g = dy·w and h = x·rstd: dx = rstd·(g - h·mean(g·h)) + dres, dw = sum over rows of
// dy·h, which may accumulate. Limited by memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

struct Buffers {
  float *weight, *x, *y;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    weight = scratch.take<float>(cols);
    x = scratch.take<float>(cols);
    y = scratch.take<float>(cols);
  }
};

/// Normalises one row of fp32 numbers into row `row` of y. Returns its rstd.
float normRow(const Call &call, const float *x, const float *w, const Tensor &y, int64_t row,
              float *buffer) {
  int64_t n = y.cols();
  float rstd = rstdOf(call, x, n);
  float *to = targetF32(y, row * n, buffer);
  scaleRow(x, w, rstd, n, to);
  writeF32(y, row * n, n, to);
  return rstd;
}

void runRmsNorm(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0];
  const float *w = normWeight(call, call.in[1], buffers.weight);
  float *rstd = static_cast<float *>(call.out[1].data);
  for (int64_t row = 0, rows = x.rows(), n = x.cols(); row < rows; ++row)
    rstd[row] = normRow(call, readF32(x, row * n, n, buffers.x), w, call.out[0], row, buffers.y);
}

void runRmsNormAgain(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0];
  const float *w = normWeight(call, call.in[1], buffers.weight);
  const auto *rstd = static_cast<const float *>(call.in[2].data);
  for (int64_t row = 0, rows = x.rows(), n = x.cols(); row < rows; ++row) {
    float *y = targetF32(call.out[0], row * n, buffers.y);
    scaleRow(readF32(x, row * n, n, buffers.x), w, rstd[row], n, y);
    writeF32(call.out[0], row * n, n, y);
  }
}

struct BwdBuffers : RmsNormGradient {
  float *dres;

  BwdBuffers(const Call &call, Scratch &scratch)
      : RmsNormGradient(call, scratch), dres(scratch.take<float>(call.in[0].cols())) {}
};

/// With h = x·rstd and g = dy·w: dx = rstd·(g - h·mean(g·h)), dw = sum of dy·h. An optional last
/// operand is added to dx, and an optional result is y, computed again.
void runBwd(const Call &call, const BwdBuffers &buffers) {
  int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  const float *w = normWeight(call, call.in[2], buffers.weight);
  const float *rstd = static_cast<const float *>(call.in[3].data);
  std::fill_n(buffers.dw, n, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const float *x = buffers.addRow(call, row, w, rstd[row]);
    inputGradient(buffers.g, buffers.h, rstd[row], n, buffers.dx);
    if (call.inCount > 4) {
      const float *dres = readF32(call.in[4], row * n, n, buffers.dres);
      for (int64_t i = 0; i < n; ++i)
        buffers.dx[i] += dres[i];
    }
    writeF32(call.out[0], row * n, n, buffers.dx);
    if (call.outCount > 2) {
      scaleRow(x, w, rstd[row], n, buffers.g);
      writeF32(call.out[2], row * n, n, buffers.g);
    }
  }
  writeSums(call.out[1], 0, n, buffers.dw, buffers.g);
}

} // namespace

const Kernel kRmsNorm = kernelOf<OpKind::RmsNorm>(withBuffers<runRmsNorm>);
const Kernel kRmsNormAgain = kernelOf<OpKind::RmsNormAgain>(withBuffers<runRmsNormAgain>);
const Kernel kRmsNormBwd = kernelOf<OpKind::RmsNormBwd, nullptr, 2>(withBuffers<runBwd>);

} // namespace shardc::kernels::host
