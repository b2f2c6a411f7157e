// Shared by rmsnorm and layernorm: the arithmetic of rows, and their weight in fp32.
#pragma once

#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// The norm's weight in fp32, plus one if zero_centered. `buffer` must be as large as the weight.
const float *normWeight(const Call &call, const Tensor &weight, float *buffer);

/// 1/sqrt(mean(x²) + eps) of a row.
float rstdOf(const Call &call, const float *x, int64_t n);

/// y = x·rstd·w.
void scaleRow(const float *x, const float *w, float rstd, int64_t n, float *y);

/// For the gradient of rmsnorm: computes g = dy·w and h = x·rstd of a row.
void gradientsOfRow(const float *dy, const float *x, const float *w, float rstd, int64_t n,
                    float *g, float *h);

/// dx = rstd·(g - h·mean).
void subtractMean(const float *g, const float *h, float mean, float rstd, int64_t n, float *dx);

/// The gradient of a row's input. It computes the mean of g·h over the row first.
void inputGradient(const float *g, const float *h, float rstd, int64_t n, float *dx);

} // namespace shardc::kernels::host
