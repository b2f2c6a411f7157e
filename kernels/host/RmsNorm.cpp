// Norms without a mean, over the last dimension. Data are f32, bf16 or f16 each, statistics are
// f32; sums over a row and over rows are fp64. Limited by memory.
//  rmsnorm: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd·w (w + 1 if zero_centered)
//  l2norm: the same without a weight
//  rmsnorm_again: y from the saved rstd
//  rmsnorm_part: y if ranks have parts of the columns of each row, from squares[R,1], which has the
//    mean of the squares of the whole row
//  rmsnorm_bwd, with g = dy·w and h = x·rstd: dx = rstd·(g - h·mean(g·h)) + dres, dw = sum over
//    rows of dy·h, which may accumulate
//  l2norm_bwd: dx = rstd·(dy - h·mean(dy·h))
//  rmsnorm_part_bwd: dx = rstd·(g - h·rstd·dots), where dots[R,1] has the mean of dy·w·x over the
//    whole row; dw as in rmsnorm_bwd
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

/// Where the rstd of a row is from: from the row, from an earlier call, or from the mean of the
/// squares of the whole row.
enum class Rstd { OfRow, Saved, OfMean };

/// rstd of a row from its statistic: itself, or the mean of squares.
template <Rstd kFrom> float rstdFrom(const Call &call, const Tensor &statistics, int64_t row) {
  const float statistic = static_cast<const float *>(statistics.data)[row];
  if constexpr (kFrom == Rstd::Saved)
    return statistic;
  return static_cast<float>(1.0 / std::sqrt(double{statistic} + call.attrs.eps));
}

template <Rstd kFrom, bool kHasWeight = true>
void runNorm(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const int64_t n = x.cols();
  const float *w = buffers.weight;
  if constexpr (kHasWeight)
    w = normWeight(call, call.in[1], buffers.weight);
  else
    std::fill_n(buffers.weight, n, 1.0f);
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    const float *from = readF32(x, row * n, n, buffers.x);
    float rstd = 0;
    if constexpr (kFrom == Rstd::OfRow)
      static_cast<float *>(call.out[1].data)[row] = rstd = rstdOf(call, from, n);
    else
      rstd = rstdFrom<kFrom>(call, call.in[2], row);
    float *to = targetF32(y, row * n, buffers.y);
    scaleRow(from, w, rstd, n, to);
    writeF32(y, row * n, n, to);
  }
}

template <bool kIsPart> struct BwdBuffers {
  float *weight, *dy, *x, *g, *h, *dx, *dres;
  double *dw; ///< sum over rows of dy·h

  BwdBuffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&weight, &dy, &x, &g, &h, &dx})
      *buffer = scratch.take<float>(cols);
    dw = scratch.take<double>(cols);
    dres = kIsPart ? nullptr : scratch.take<float>(cols);
  }
};

SHARDC_CLONES void addRow(const float *more, int64_t n, float *row) {
  for (int64_t i = 0; i < n; ++i)
    row[i] += more[i];
}

/// Of whole rows, an optional last operand is added to dx, and an optional result is y, computed
/// again.
template <bool kIsPart> void runBwd(const Call &call, const BwdBuffers<kIsPart> &buffers) {
  const int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  const float *w = normWeight(call, call.in[2], buffers.weight);
  std::fill_n(buffers.dw, n, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const float rstd = rstdFrom < kIsPart ? Rstd::OfMean : Rstd::Saved > (call, call.in[3], row);
    const float *dy = readF32(call.in[0], row * n, n, buffers.dy);
    const float *x = readF32(call.in[1], row * n, n, buffers.x);
    gradientsOfRow(dy, x, w, rstd, n, buffers.g, buffers.h);
    addProducts(dy, buffers.h, n, buffers.dw);
    if constexpr (kIsPart) {
      const float dots = static_cast<const float *>(call.in[4].data)[row];
      subtractMean(buffers.g, buffers.h, dots * rstd, rstd, n, buffers.dx);
    } else {
      inputGradient(buffers.g, buffers.h, rstd, n, buffers.dx);
      if (call.inCount > 4)
        addRow(readF32(call.in[4], row * n, n, buffers.dres), n, buffers.dx);
    }
    writeF32(call.out[0], row * n, n, buffers.dx);
    if (call.outCount > 2) {
      scaleRow(x, w, rstd, n, buffers.g);
      writeF32(call.out[2], row * n, n, buffers.g);
    }
  }
  if (call.outCount > 1)
    writeSums(call.out[1], 0, n, buffers.dw, buffers.g);
}

struct L2Buffers {
  float *dy, *x, *dx;

  L2Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&dy, &x, &dx})
      *buffer = scratch.take<float>(cols);
  }
};

void runL2NormBwd(const Call &call, const L2Buffers &buffers) {
  for (int64_t row = 0, rows = call.in[1].rows(), n = call.in[1].cols(); row < rows; ++row) {
    const float rstd = rstdFrom<Rstd::Saved>(call, call.in[2], row);
    const float *dy = readF32(call.in[0], row * n, n, buffers.dy);
    const float *x = readF32(call.in[1], row * n, n, buffers.x);
    double product = dot(dy, x, n) * static_cast<double>(rstd);
    auto mean = static_cast<float>(product / static_cast<double>(n));
    for (int64_t i = 0; i < n; ++i)
      buffers.dx[i] = rstd * (dy[i] - x[i] * rstd * mean);
    writeF32(call.out[0], row * n, n, buffers.dx);
  }
}

} // namespace

SHARDC_HOST_KERNEL(RmsNorm, withBuffers<runNorm<Rstd::OfRow>>);
SHARDC_HOST_KERNEL(RmsNormAgain, withBuffers<runNorm<Rstd::Saved>>);
SHARDC_HOST_KERNEL(RmsNormPart, withBuffers<runNorm<Rstd::OfMean>>);
SHARDC_HOST_KERNEL(L2Norm, (withBuffers<runNorm<Rstd::OfRow, false>>));
SHARDC_HOST_KERNEL(RmsNormBwd, withBuffers<runBwd<false>>, nullptr, 2);
SHARDC_HOST_KERNEL(RmsNormPartBwd, withBuffers<runBwd<true>>, nullptr, 2);
SHARDC_HOST_KERNEL(L2NormBwd, withBuffers<runL2NormBwd>);

} // namespace shardc::kernels::host
