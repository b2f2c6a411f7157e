// Shared by the two norms: their checks, and their weight in fp32.
#pragma once

#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// The norm's weight in fp32, plus one if it is stored minus one. `buffer` has room for it.
const float *normWeight(const Call &call, const Tensor &weight, float *buffer);

/// Null, or the reason why these are not an input, a result like it, a weight and statistics.
inline const char *checkNorm(const Tensor &x, const Tensor &y, const Tensor &weight) {
  SHARDC_REQUIRE(isData(x) && isData(y) && isData(weight),
                 "a norm's data are not f32, bf16 or f16");
  SHARDC_REQUIRE(sameMatrix(x, y), "a norm's operands and results differ in shape");
  SHARDC_REQUIRE(isVector(weight, x.cols()), "a norm's weight or bias is not as long as a row");
  return nullptr;
}
inline const char *checkStatistic(const Tensor &x, const Tensor &statistic) {
  SHARDC_REQUIRE(statistic.dtype == DType::F32, "a norm's statistic is not f32");
  SHARDC_REQUIRE(statistic.numel() == x.rows(), "a norm's statistic is not one number a row");
  return nullptr;
}

/// 1/sqrt(mean(x²) + eps) of a row.
float rstdOf(const Call &call, const float *x, int64_t n);

/// y = x·rstd·w.
void scaleRow(const float *x, const float *w, float rstd, int64_t n, float *y);

/// For rmsnorm's gradient: g = dy·w and h = x·rstd of a row.
void gradientsOfRow(const float *dy, const float *x, const float *w, float rstd, int64_t n,
                    float *g, float *h);

/// The memory of a gradient of rmsnorm, whose first operands are dy, x and w.
struct RmsNormGradient {
  float *weight, *dy, *x, *g, *h, *dx; ///< of a row
  double *dw;                          ///< sum over rows of dy·h, which the caller begins with 0

  RmsNormGradient(const Call &call, Scratch &scratch);
  /// Makes g and h of a row, as gradientsOfRow has them, and adds to dw. Returns the row of x.
  const float *addRow(const Call &call, int64_t row, const float *w, float rstd) const;
};

/// dx = rstd·(g - h·mean).
void subtractMean(const float *g, const float *h, float mean, float rstd, int64_t n, float *dx);

/// The gradient of a row's input, from the mean of g·h over the row.
void inputGradient(const float *g, const float *h, float rstd, int64_t n, float *dx);

/// layernorm's y again, of x w bias mean rstd: a part of other ops.
extern const Kernel kLayerNormAgain;

} // namespace shardc::kernels::host
