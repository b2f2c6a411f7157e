// The only entry to BLAS: fp32 matrix products in row-major order, one thread per call.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::kernels::host {

/// Sets OpenBLAS to one thread per call, once; results then depend only on the operands.
void initBlas();

/// Name and version of the library: `OpenBLAS 0.3.21`.
std::string blasVersion();

/// A matrix factor as it lies in memory: `stride` elements from row to row, read transposed if
/// `transposed`.
struct Factor {
  const float *data;
  int64_t stride;
  bool transposed = false;
};

/// c[m,n] = alpha·op(a)[m,k]·op(b)[k,n] + beta·c; `c` has `stride` elements from row to row. c is
/// not read if beta is 0. Extents and strides are below 2^31.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride);

} // namespace shardc::kernels::host
