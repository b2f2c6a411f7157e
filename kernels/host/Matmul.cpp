// c[M,N] = op(a)·op(b) + bias[N]; the leading dimensions of a, b and c are flattened to rows.
// Operands and result are f32, bf16 or f16 each. The product is fp32 through BLAS, rounded once. An
// accumulating result is old + product. matmul_gelu: x = the product, y = gelu of the product
// before rounding. matmul_gelu_bwd: dx = product·gelu'(x). matmul_add: c = product + more, where c
// and `more` share a buffer, which makes it an accumulating matmul. Limited by BLAS; conversions
// access each element once.
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Gelu.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

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
  float *a, *b, *bias, *panel, *other;
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
    other = scratch.take<float>(panelRows * extents.n);
  }
};

/// Checks the operands and the result that all products have.
const char *checkProduct(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  SHARDC_REQUIRE(isData(a) && isData(b) && isData(c), "matmul takes f32, bf16 and f16");
  SHARDC_REQUIRE(a.rank >= 2 && b.rank >= 2 && c.rank >= 2,
                 "an operand or product is not a matrix");
  Extents extents(call);
  int64_t extentMax = std::max({a.rows(), b.rows(), a.cols(), b.cols()});
  SHARDC_REQUIRE(extentMax < (int64_t{1} << 31), "a matrix has 2^31 rows or more");
  SHARDC_REQUIRE(extents.k == extents.kOfB, "the operands' inner extents differ");
  SHARDC_REQUIRE(c.rows() == extents.m && c.cols() == extents.n,
                 "the product's shape is not that of the operands");
  return nullptr;
}

const char *checkBias(const Call &call) {
  if (call.inCount > 2)
    SHARDC_REQUIRE(isData(call.in[2]) && isVector(call.in[2], Extents(call).n),
                   "the bias is not an f32, bf16 or f16 vector as long as a row");
  return nullptr;
}

const char *acceptsMatMul(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 3, 1, 1, 1}));
  SHARDC_REQUIRE_OK(checkProduct(call));
  return checkBias(call);
}

/// The product that accumulates into its result. The result shares the buffer of the operand
/// `more`.
Call accumulating(const Call &call) {
  Call product = call;
  if (call.inCount > 3)
    product.in[2] = call.in[3];
  product.inCount = call.inCount - 1;
  product.out[0].accumulate = true;
  return product;
}

const char *acceptsMatMulAdd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 4, 1, 1}));
  SHARDC_REQUIRE(call.in[2].dtype == call.out[0].dtype && sameShape(call.in[2], call.out[0]) &&
                     call.in[2].data == call.out[0].data,
                 "the result does not have type, shape and buffer of what the product is added to");
  return acceptsMatMul(accumulating(call));
}

const char *acceptsMatMulGelu(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 3, 2, 2}));
  SHARDC_REQUIRE_OK(checkProduct(call));
  SHARDC_REQUIRE(isData(call.out[1]) && sameMatrix(call.out[0], call.out[1]),
                 "y and x differ in shape");
  return checkBias(call);
}

const char *acceptsMatMulGeluBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 1, 1}));
  SHARDC_REQUIRE_OK(checkProduct(call));
  SHARDC_REQUIRE(isData(call.in[2]) && sameMatrix(call.in[2], call.out[0]),
                 "x and its gradient differ in shape");
  return nullptr;
}

/// Computes the product panel by panel: in place in `to` or in the panel buffer, with the bias.
/// `use` receives the first element, the number of elements and their address.
template <typename Use>
void forEachPanel(const Call &call, const Buffers &buffers, const Tensor *bias, const Tensor &to,
                  Use use) {
  Extents extents(call);
  const float *a = readF32(call.in[0], 0, call.in[0].numel(), buffers.a);
  const float *b = readF32(call.in[1], 0, call.in[1].numel(), buffers.b);
  const float *terms = bias ? readF32(*bias, 0, extents.n, buffers.bias) : nullptr;
  int64_t strideA = call.in[0].cols(), n = extents.n;
  for (int64_t row = 0; row < extents.m; row += buffers.panelRows) {
    int64_t rows = std::min(buffers.panelRows, extents.m - row);
    const float *panelA = a + (call.attrs.trans_a ? row : row * strideA);
    float *panel = targetF32(to, row * n, buffers.panel);
    gemm(rows, n, extents.k, 1.0f, {panelA, strideA, call.attrs.trans_a},
         {b, call.in[1].cols(), call.attrs.trans_b}, 0.0f, panel, n);
    if (terms)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < n; ++j)
          panel[r * n + j] += terms[j];
    use(row * n, rows * n, panel);
  }
}

void runMatMul(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &c = call.out[0];
  forEachPanel(
      call, buffers, call.inCount > 2 ? &call.in[2] : nullptr, c,
      [&](int64_t begin, int64_t n, const float *product) { writeF32(c, begin, n, product); });
}

void runMatMulAdd(const Call &call) { runMatMul(accumulating(call)); }

struct AddBuffers : Buffers {
  AddBuffers(const Call &call, Scratch &scratch) : Buffers(accumulating(call), scratch) {}
};

/// y = gelu(product), and the product itself for the backward op.
void runMatMulGelu(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &y = call.out[0], &x = call.out[1];
  GeluFunction function = geluOf(call.attrs);
  forEachPanel(call, buffers, call.inCount > 2 ? &call.in[2] : nullptr, x,
               [&](int64_t begin, int64_t n, const float *product) {
                 for (int64_t i = 0; i < n; ++i)
                   buffers.other[i] = function(product[i]);
                 writeF32(x, begin, n, product);
                 writeF32(y, begin, n, buffers.other);
               });
}

/// dx = product · gelu'(x), where x is the operand of GELU.
void runMatMulGeluBwd(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &dx = call.out[0];
  GeluFunction slope = geluSlopeOf(call.attrs);
  forEachPanel(call, buffers, nullptr, dx, [&](int64_t begin, int64_t n, float *product) {
    const float *x = readF32(call.in[2], begin, n, buffers.other);
    for (int64_t i = 0; i < n; ++i)
      product[i] *= slope(x[i]);
    writeF32(dx, begin, n, product);
  });
}

} // namespace

const Kernel kMatMul = {"matmul_host", runMatMul, acceptsMatMul, workspaceOf<Buffers>};
const Kernel kMatMulAdd = {"matmul_add_host", runMatMulAdd, acceptsMatMulAdd,
                           workspaceOf<AddBuffers>};
const Kernel kMatMulGelu = {"matmul_gelu_host", runMatMulGelu, acceptsMatMulGelu,
                            workspaceOf<Buffers>};
const Kernel kMatMulGeluBwd = {"matmul_gelu_bwd_host", runMatMulGeluBwd, acceptsMatMulGeluBwd,
                               workspaceOf<Buffers>};

} // namespace shardc::kernels::host
