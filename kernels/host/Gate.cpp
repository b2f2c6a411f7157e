// gate: y = x·sigmoid(g), or x·silu(g) with attribute silu. gate_bwd: dx = dy times that factor, dg
// = dy·x times its slope. gated_norm: rmsnorm of each of `parts` equal parts of the rows of
// x·silu(z), with a weight for each column. Data are f32, bf16 or f16 each, computed in fp32 and
// rounded once; sums over a part and over rows are fp64. Limited by exp.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// The factor of a gate, and its slope.
struct Opening {
  float factor, slope;
};

Opening openingOf(float g, bool isSilu) {
  const float sigmoid = 1.0f / (1.0f + std::exp(-g));
  if (isSilu)
    return {g * sigmoid, sigmoid * (1.0f + g * (1.0f - sigmoid))};
  return {sigmoid, sigmoid * (1.0f - sigmoid)};
}

void runGate(const Call &call) {
  float xs[kBlock], gs[kBlock], y[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    const float *x = readF32(call.in[0], begin, n, xs), *g = readF32(call.in[1], begin, n, gs);
    for (int64_t i = 0; i < n; ++i)
      y[i] = x[i] * openingOf(g[i], call.attrs.silu).factor;
    writeF32(call.out[0], begin, n, y);
  }
}

void runGateBwd(const Call &call) {
  float dys[kBlock], xs[kBlock], gs[kBlock], dx[kBlock], dg[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    const float *dy = readF32(call.in[0], begin, n, dys), *x = readF32(call.in[1], begin, n, xs),
                *g = readF32(call.in[2], begin, n, gs);
    for (int64_t i = 0; i < n; ++i) {
      const Opening opening = openingOf(g[i], call.attrs.silu);
      dx[i] = dy[i] * opening.factor, dg[i] = dy[i] * x[i] * opening.slope;
    }
    writeF32(call.out[0], begin, n, dx);
    writeF32(call.out[1], begin, n, dg);
  }
}

struct NormBuffers {
  float *w, *x, *z, *gated, *y;

  NormBuffers(const Call &call, Scratch &scratch) {
    const int64_t columns = call.in[0].cols();
    for (float **buffer : {&w, &x, &z, &gated, &y})
      *buffer = scratch.take<float>(columns);
  }
};

void runGatedNorm(const Call &call, const NormBuffers &b) {
  const int64_t columns = call.in[0].cols(), parts = call.attrs.parts, n = columns / parts;
  const float *w = readF32(call.in[2], 0, columns, b.w);
  auto *rstd = static_cast<float *>(call.out[1].data);
  for (int64_t row = 0, rows = call.in[0].rows(); row < rows; ++row) {
    const float *x = readF32(call.in[0], row * columns, columns, b.x),
                *z = readF32(call.in[1], row * columns, columns, b.z);
    for (int64_t i = 0; i < columns; ++i)
      b.gated[i] = x[i] * openingOf(z[i], true).factor;
    for (int64_t i = 0; i < parts; ++i) {
      float &scale = rstd[row * parts + i];
      scale = rstdOf(call, b.gated + i * n, n);
      scaleRow(b.gated + i * n, w + i * n, scale, n, b.y + i * n);
    }
    writeF32(call.out[0], row * columns, columns, b.y);
  }
}

struct NormBwdBuffers : NormBuffers {
  float *dy, *g, *h, *dx;
  double *dw;

  NormBwdBuffers(const Call &call, Scratch &scratch) : NormBuffers(call, scratch) {
    const int64_t columns = call.in[0].cols();
    for (float **buffer : {&dy, &g, &h, &dx})
      *buffer = scratch.take<float>(columns);
    dw = scratch.take<double>(columns);
  }
};

/// With g = dy·w and h = x·silu(z)·rstd, the gradient of x·silu(z) is rstd·(g - h·mean(g·h)).
void runGatedNormBwd(const Call &call, const NormBwdBuffers &b) {
  const int64_t columns = call.in[0].cols(), parts = call.attrs.parts, n = columns / parts;
  const float *w = readF32(call.in[3], 0, columns, b.w);
  const auto *rstd = static_cast<const float *>(call.in[4].data);
  std::fill_n(b.dw, columns, 0.0);
  for (int64_t row = 0, rows = call.in[0].rows(); row < rows; ++row) {
    const int64_t begin = row * columns;
    const float *dy = readF32(call.in[0], begin, columns, b.dy),
                *x = readF32(call.in[1], begin, columns, b.x),
                *z = readF32(call.in[2], begin, columns, b.z);
    for (int64_t i = 0; i < columns; ++i)
      b.gated[i] = x[i] * openingOf(z[i], true).factor;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t at = i * n;
      const float scale = rstd[row * parts + i];
      gradientsOfRow(dy + at, b.gated + at, w + at, scale, n, b.g, b.h);
      addProducts(dy + at, b.h, n, b.dw + at);
      inputGradient(b.g, b.h, scale, n, b.dx + at);
    }
    for (int64_t i = 0; i < columns; ++i) {
      const Opening opening = openingOf(z[i], true);
      b.y[i] = b.dx[i] * x[i] * opening.slope, b.dx[i] *= opening.factor;
    }
    writeF32(call.out[0], begin, columns, b.dx);
    writeF32(call.out[1], begin, columns, b.y);
  }
  writeSums(call.out[2], 0, columns, b.dw, b.y);
}

} // namespace

SHARDC_HOST_KERNEL(Gate, runGate);
SHARDC_HOST_KERNEL(GateBwd, runGateBwd);
SHARDC_HOST_KERNEL(GatedNorm, withBuffers<runGatedNorm>);
SHARDC_HOST_KERNEL(GatedNormBwd, withBuffers<runGatedNormBwd>, nullptr, 4);

} // namespace shardc::kernels::host
