// The only access to BLAS: fp32 matrix products in row-major order, on one thread. A row of a
// product depends only on its row of the first operand, the second operand, n and k, not on the
// other rows that the call computes; docs/adr/0014-row-invariant-products.md explains how.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::kernels::host {

/// Why BLIS cannot compute with the kernels that BLIS_ARCH_TYPE selects, such as `BLIS_ARCH_TYPE =
/// 'abc' is not a number`. Empty if it can, or if the variable is not set. If it is set, the first
/// call tries a product in a child process.
const std::string &blasRefusal();

/// Initialises BLIS, unless blasRefusal() has a reason not to. Without this call, the first product
/// does it. Thread-safe.
void initBlas();

/// Name and version of the library, and the processor family of its kernels, such as `BLIS 0.9.0
/// (skx)`; or the reason why it has no kernels.
std::string blasVersion();

/// An operand of a product: `stride` elements from row to row in memory, read transposed if
/// `transposed`.
struct Factor {
  const float *data;
  int64_t stride;
  bool transposed = false;
};

/// c[m,n] = alpha·op(a)[m,k]·op(b)[k,n] + beta·c, with `stride` elements from row to row of c. If
/// beta is 0, c is not read. The bits of a row depend neither on m nor on the row's position.
/// Thread-safe.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride);

} // namespace shardc::kernels::host
