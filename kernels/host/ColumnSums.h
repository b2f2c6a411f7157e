// Column sums over rows, in fp64, for gradients of weights, biases and table rows.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// sums[i] += a[i]·b[i].
void addProducts(const float *a, const float *b, int64_t n, double *sums);

/// sums[i] += a[i].
void addTerms(const float *a, int64_t n, double *sums);

/// Rounds the sums to fp32 into `buffer` and writes them to `to` from element `offset` on. If `to`
/// accumulates, adds them to the old content.
void writeSums(const Tensor &to, int64_t offset, int64_t n, const double *sums, float *buffer);

} // namespace shardc::kernels::host
