// layernorm over the last dimension, in two passes: mean, then rstd = 1/sqrt(mean((x-mean)²) +
// eps); y = (x - mean)·rstd·w + bias (w + 1 if zero_centered). Data are f32, bf16 or f16 each, mean
// and rstd are f32; sums over a row and over rows are fp64. layernorm_again recomputes y from mean
// and rstd. Backward, with g = dy·w and h = (x - mean)·rstd: dx = rstd·(g - mean(g) - h·mean(g·h))
// + dres; dw = sum of dy·h and dbias = sum of dy over rows, which may accumulate. Limited by
// memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

struct Buffers {
  float *weight, *bias, *x, *y;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&weight, &bias, &x, &y})
      *buffer = scratch.take<float>(cols);
  }
};

SHARDC_CLONES void center(const float *x, float mean, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = x[i] - mean;
}

SHARDC_CLONES void scaleRow(const float *w, const float *bias, float rstd, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = y[i] * rstd * w[i] + bias[i];
}

/// Without `kIsAgain`, computes the mean and rstd of each row first. Otherwise they are operands.
template <bool kIsAgain> void runLayerNorm(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const int64_t n = x.cols();
  const float *w = normWeight(call, call.in[1], buffers.weight);
  const float *bias = readF32(call.in[2], 0, n, buffers.bias);
  const Tensor *statistics = kIsAgain ? call.in + 3 : call.out + 1;
  auto *mean = static_cast<float *>(statistics[0].data),
       *rstd = static_cast<float *>(statistics[1].data);
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    const float *from = readF32(x, row * n, n, buffers.x);
    if constexpr (!kIsAgain)
      mean[row] = static_cast<float>(sum(from, n) / static_cast<double>(n));
    center(from, mean[row], n, buffers.y);
    if constexpr (!kIsAgain) {
      double variance = dot(buffers.y, buffers.y, n) / static_cast<double>(n);
      rstd[row] = static_cast<float>(1.0 / std::sqrt(variance + call.attrs.eps));
    }
    scaleRow(w, bias, rstd[row], n, buffers.y);
    writeF32(y, row * n, n, buffers.y);
  }
}

struct BwdBuffers {
  float *weight, *dy, *x, *dres, *g, *h, *dx;
  double *dw, *dbias;

  BwdBuffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&weight, &dy, &x, &dres, &g, &h, &dx})
      *buffer = scratch.take<float>(cols);
    dw = scratch.take<double>(cols);
    dbias = scratch.take<double>(cols);
  }
};

const char *acceptsLayerNormBwd(const Call &call) {
  SHARDC_REQUIRE(call.outCount != 2, "the gradient of a weight comes with that of its bias");
  return nullptr;
}

SHARDC_CLONES void gradientsOfRow(const float *dy, const float *x, const float *w, float mean,
                                  float rstd, int64_t n, float *g, float *h) {
  for (int64_t i = 0; i < n; ++i) {
    g[i] = dy[i] * w[i];
    h[i] = (x[i] - mean) * rstd;
  }
}

SHARDC_CLONES void inputGradient(const float *g, const float *h, float meanG, float meanGH,
                                 float rstd, int64_t n, float *dx) {
  for (int64_t i = 0; i < n; ++i)
    dx[i] = rstd * (g[i] - meanG - h[i] * meanGH);
}

/// With h = (x - mean)·rstd and g = dy·w: dx = rstd·(g - mean(g) - h·mean(g·h)), dw = sum of dy·h,
/// dbias = sum of dy. An optional last operand is added to dx.
void runLayerNormBwd(const Call &call, const BwdBuffers &buffers) {
  int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  const float *w = normWeight(call, call.in[2], buffers.weight);
  const float *mean = static_cast<const float *>(call.in[3].data);
  const float *rstd = static_cast<const float *>(call.in[4].data);
  std::fill_n(buffers.dw, n, 0.0);
  std::fill_n(buffers.dbias, n, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const float *dy = readF32(call.in[0], row * n, n, buffers.dy);
    const float *x = readF32(call.in[1], row * n, n, buffers.x);
    gradientsOfRow(dy, x, w, mean[row], rstd[row], n, buffers.g, buffers.h);
    addProducts(dy, buffers.h, n, buffers.dw);
    addTerms(dy, n, buffers.dbias);
    double meanG = sum(buffers.g, n) / static_cast<double>(n);
    double meanGH = dot(buffers.g, buffers.h, n) / static_cast<double>(n);
    inputGradient(buffers.g, buffers.h, static_cast<float>(meanG), static_cast<float>(meanGH),
                  rstd[row], n, buffers.dx);
    if (call.inCount > 5) {
      const float *dres = readF32(call.in[5], row * n, n, buffers.dres);
      for (int64_t i = 0; i < n; ++i)
        buffers.dx[i] += dres[i];
    }
    writeF32(call.out[0], row * n, n, buffers.dx);
  }
  if (call.outCount == 1)
    return;
  writeSums(call.out[1], 0, n, buffers.dw, buffers.g);
  writeSums(call.out[2], 0, n, buffers.dbias, buffers.g);
}

} // namespace

SHARDC_HOST_KERNEL(LayerNorm, withBuffers<runLayerNorm<false>>);
SHARDC_HOST_KERNEL(LayerNormAgain, withBuffers<runLayerNorm<true>>);
SHARDC_HOST_KERNEL(LayerNormBwd, withBuffers<runLayerNormBwd>, acceptsLayerNormBwd, 6);

} // namespace shardc::kernels::host
