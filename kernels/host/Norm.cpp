// The arithmetic of one row. Loops over columns are separate functions, so that the compiler can
// make versions for several instruction sets (SHARDC_CLONES).
#include "kernels/host/Norm.h"

#include "kernels/host/Rows.h"

#include <cmath>

namespace shardc::kernels::host {

const float *normWeight(const Call &call, const Tensor &weight, float *buffer) {
  int64_t n = weight.numel();
  const float *stored = readF32(weight, 0, n, buffer);
  if (!call.attrs.zero_centered)
    return stored;
  for (int64_t i = 0; i < n; ++i)
    buffer[i] = stored[i] + 1.0f;
  return buffer;
}

float rstdOf(const Call &call, const float *x, int64_t n) {
  double meanSquare = dot(x, x, n) / static_cast<double>(n);
  return static_cast<float>(1.0 / std::sqrt(meanSquare + call.attrs.eps));
}

SHARDC_CLONES void scaleRow(const float *x, const float *w, float rstd, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = x[i] * rstd * w[i];
}

SHARDC_CLONES void gradientsOfRow(const float *dy, const float *x, const float *w, float rstd,
                                  int64_t n, float *g, float *h) {
  for (int64_t i = 0; i < n; ++i) {
    g[i] = dy[i] * w[i];
    h[i] = x[i] * rstd;
  }
}

SHARDC_CLONES void subtractMean(const float *g, const float *h, float mean, float rstd, int64_t n,
                                float *dx) {
  for (int64_t i = 0; i < n; ++i)
    dx[i] = rstd * (g[i] - h[i] * mean);
}

void inputGradient(const float *g, const float *h, float rstd, int64_t n, float *dx) {
  double mean = dot(g, h, n) / static_cast<double>(n);
  subtractMean(g, h, static_cast<float>(mean), rstd, n, dx);
}

} // namespace shardc::kernels::host
