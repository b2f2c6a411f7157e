// c[M,N] = op(a)·op(b) + bias[N]; the leading dimensions of a, b and c are flattened to rows.
// Operands and result are f32, bf16 or f16 each. The product is fp32 through BLAS, rounded once. An
// accumulating result is old + product. Limited by BLAS; conversions access each element once.
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

/// Extents of op(a) · op(b): m by k and k by n. `kOfB`: k according to b, which must be equal.
struct Extents {
  int64_t m, n, k, kOfB;

  explicit Extents(const Call &call) {
    const Tensor &a = call.in[0], &b = call.in[1];
    m = call.attrs.trans_a ? a.cols() : a.rows();
    k = call.attrs.trans_a ? a.rows() : a.cols();
    n = call.attrs.trans_b ? b.rows() : b.cols();
    kOfB = call.attrs.trans_b ? b.cols() : b.rows();
  }
};

struct Buffers {
  float *a, *b, *bias, *panel;
  int64_t panelRows;

  Buffers(const Call &call, Scratch &scratch) {
    Extents extents(call);
    a = scratch.takeUnlessF32(call.in[0], call.in[0].numel());
    b = scratch.takeUnlessF32(call.in[1], call.in[1].numel());
    bias = call.inCount > 2 ? scratch.takeUnlessF32(call.in[2], extents.n) : nullptr;
    // The result is computed in panels of rows, so that accumulation and rounding need little
    // scratch.
    constexpr int64_t panelElements = int64_t{1} << 22, panelRowsMin = 128;
    panelRows = std::min(extents.m, std::max(panelRowsMin, panelElements / extents.n));
    panel = scratch.take<float>(panelRows * extents.n);
  }
};

const char *acceptsMatMul(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  SHARDC_REQUIRE(a.rank >= 2 && b.rank >= 2 && c.rank >= 2,
                 "an operand or product is not a matrix");
  int64_t extentMax = std::max({a.rows(), b.rows(), a.cols(), b.cols()});
  SHARDC_REQUIRE(extentMax < (int64_t{1} << 31), "a matrix has 2^31 rows or more");
  return nullptr;
}

/// Computes the product panel by panel: in place in the result, or in the panel buffer.
void runMatMul(const Call &call, const Buffers &buffers) {
  Extents extents(call);
  const Tensor &c = call.out[0];
  const float *a = readF32(call.in[0], 0, call.in[0].numel(), buffers.a);
  const float *b = readF32(call.in[1], 0, call.in[1].numel(), buffers.b);
  const float *bias = call.inCount > 2 ? readF32(call.in[2], 0, extents.n, buffers.bias) : nullptr;
  int64_t strideA = call.in[0].cols(), n = extents.n;
  for (int64_t row = 0; row < extents.m; row += buffers.panelRows) {
    int64_t rows = std::min(buffers.panelRows, extents.m - row);
    const float *panelA = a + (call.attrs.trans_a ? row : row * strideA);
    float *panel = targetF32(c, row * n, buffers.panel);
    gemm(rows, n, extents.k, 1.0f, {panelA, strideA, call.attrs.trans_a},
         {b, call.in[1].cols(), call.attrs.trans_b}, 0.0f, panel, n);
    if (bias)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < n; ++j)
          panel[r * n + j] += bias[j];
    writeF32(c, row * n, rows * n, panel);
  }
}

} // namespace

SHARDC_HOST_KERNEL(MatMul, withBuffers<runMatMul>, acceptsMatMul, 1);

} // namespace shardc::kernels::host
