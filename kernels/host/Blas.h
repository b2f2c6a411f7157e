// The only entry to BLAS: fp32 matrix products in row-major order, one thread per call. A row of a
// product depends on its row of the first factor, the second factor and the extents n and k alone,
// whatever other rows the call computes; docs/adr/0014-row-invariant-products.md says how.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::kernels::host {

/// Why BLIS cannot compute with the kernels that BLIS_ARCH_TYPE chooses: `BLIS_ARCH_TYPE = 'abc' is
/// not a number`. Empty if it can, or chooses by itself. With the variable set, the first call
/// tries a product in a process of its own.
const std::string &blasRefusal();

/// Initialises BLIS, unless it is refused. Otherwise the first product does. Threads may call this
/// function.
void initBlas();

/// Name and version of the library, and the processors whose kernels it uses: `BLIS 0.9.0 (skx)`,
/// or why it has none.
std::string blasVersion();

/// A matrix factor as it lies in memory: `stride` elements from row to row, read transposed if
/// `transposed`.
struct Factor {
  const float *data;
  int64_t stride;
  bool transposed = false;
};

/// c[m,n] = alpha·op(a)[m,k]·op(b)[k,n] + beta·c; `c` has `stride` elements from row to row. c is
/// not read if beta is 0. The bits of a row do not depend on m, nor on the row's place among the
/// others. Threads may call this function.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride);

} // namespace shardc::kernels::host
