// Grouped matrix products (kernels/host/RowGroups.h); a[n,k], c[n,m], and b[E,k,m], or [E,m,k] with
// trans_b. Row r belongs to group e.
//  grouped_matmul: c[r,:] = a[r,:]·op(b[e])
//  grouped_matmul_bwd, the gradient of b: dw[e] = sum over the rows r of group e in all slots of
//    a[r,:]ᵀ·b[r,:], with b[n,m] and dw[E,k,m]; may accumulate
//  grouped_matmul_bwd_squares: also ss f64[1] = sum of the squares of the final dw
//  grouped_matmul_scaled: grouped_matmul with f8e4m3 matrices b[e] times bscales[e,0], f32[E,4]
//  grouped_matmul_bias: grouped_matmul, then grouped_bias in place
// Rows beyond the counts are neither read nor written. Data are f32, bf16 or f16 each; products are
// fp32, rounded once. With an fp8_recipe, operands are first quantised to 8 bits.
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/GroupedFloat8.h"
#include "kernels/host/RowGroups.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>

#include "runtime/base/Float8.h"

namespace shardc::kernels::host {
namespace {

/// Number of rows that are computed at a time, so that conversion needs little scratch.
constexpr int64_t kPanelRows = 512;

struct Buffers {
  RowGroups groups;
  float *a, *b, *c;
  int64_t panelRows;

  Buffers(const Call &call, Scratch &scratch)
      : groups(call.in[2], call.in[0].shape[0], scratch),
        panelRows(std::min(kPanelRows, groups.slotRows)) {
    const Tensor &matrix = call.in[1];
    a = scratch.takeUnlessF32(call.in[0], panelRows * call.in[0].cols());
    b = scratch.takeUnlessF32(matrix, matrix.shape[1] * matrix.shape[2]);
    c = scratch.take<float>(panelRows * call.out[0].cols());
  }
};

/// The checks of both products. `amax` is the index of the operand with expected amaxes, if the
/// call has it.
const char *checkProduct(const Call &call, int amax) {
  const Tensor &a = call.in[0], &b = call.in[1], &counts = call.in[2], &c = call.out[0];
  SHARDC_REQUIRE(isData(a) && isData(c), "operands are not f32, bf16 or f16");
  SHARDC_REQUIRE(a.rank == 2 && b.rank == 3 && c.rank == 2,
                 "operands and product are not [n, k], [E, k, m] and [n, m]");
  int64_t k = b.shape[call.attrs.trans_b ? 2 : 1], m = b.shape[call.attrs.trans_b ? 1 : 2];
  SHARDC_REQUIRE(a.cols() == k && c.cols() == m && c.rows() == a.rows(),
                 "the product's shape is not that of the operands");
  SHARDC_REQUIRE_OK(checkCounts(counts, a.rows()));
  SHARDC_REQUIRE(counts.shape[1] == b.shape[0], "there is not one matrix for each run");
  return checkFloat8(call, amax);
}

const char *acceptsGroupedMatMul(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 5, 1, 2}));
  SHARDC_REQUIRE(isData(call.in[1]), "operands are not f32, bf16 or f16");
  return checkProduct(call, 3);
}

const char *acceptsGroupedMatMulScaled(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {4, 6, 1, 2}));
  const Tensor &scales = call.in[3];
  SHARDC_REQUIRE(call.in[1].dtype == DType::F8E4M3, "matrices are not f8e4m3");
  SHARDC_REQUIRE(isScaledWhole(static_cast<Fp8Factors>(call.attrs.fp8_recipe)),
                 "the recipe has no scales of whole matrices");
  SHARDC_REQUIRE_OK(checkProduct(call, 4));
  SHARDC_REQUIRE(scales.dtype == DType::F32 && scales.rank == 2 &&
                     scales.shape[0] == call.in[1].shape[0] && scales.shape[1] == 4,
                 "scales of matrices are not f32[E, 4]");
  return nullptr;
}

/// Multiplies the rows of a group in panels of `panelRows` rows, which bounds the workspace. A
/// group's matrix is converted to fp32 once, and only if the group has rows.
void runGroupedMatMul(const Call &call) {
  if (call.attrs.fp8_recipe != 0)
    return runGroupedFloat8(call);
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  RowGroups &groups = buffers.groups;
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  int64_t k = a.cols(), m = c.cols();
  groups.read();
  for (int64_t group = 0; group < groups.groups; ++group) {
    const float *matrix = nullptr; // only read if the group has rows
    for (int64_t slot = 0; slot < groups.slots; ++slot) {
      int64_t end = groups.begin(slot, group) + groups.rows(slot, group);
      for (int64_t row = groups.begin(slot, group); row < end; row += buffers.panelRows) {
        if (matrix == nullptr)
          matrix = readF32(b, group * k * m, k * m, buffers.b);
        int64_t rows = std::min(buffers.panelRows, end - row);
        float *product = targetF32(c, row * m, buffers.c);
        gemm(rows, m, k, 1.0f, {readF32(a, row * k, rows * k, buffers.a), k},
             {matrix, b.cols(), call.attrs.trans_b}, 0.0f, product, m);
        writeF32(c, row * m, rows * m, product);
      }
    }
  }
}

struct GradientBuffers {
  RowGroups groups;
  float *a, *b, *dw;

  GradientBuffers(const Call &call, Scratch &scratch)
      : groups(call.in[2], call.in[0].shape[0], scratch) {
    a = scratch.takeUnlessF32(call.in[0], groups.slotRows * call.in[0].cols());
    b = scratch.takeUnlessF32(call.in[1], groups.slotRows * call.in[1].cols());
    dw = scratch.take<float>(call.in[0].cols() * call.in[1].cols());
  }
};

const char *checkGradient(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &counts = call.in[2], &dw = call.out[0];
  SHARDC_REQUIRE(isData(a) && isData(b) && isData(dw), "operands are not f32, bf16 or f16");
  SHARDC_REQUIRE(a.rank == 2 && b.rank == 2 && dw.rank == 3,
                 "operands and gradient are not [n, k], [n, m] and [E, k, m]");
  SHARDC_REQUIRE(a.rows() == b.rows() && dw.shape[1] == a.cols() && dw.shape[2] == b.cols(),
                 "the gradient's shape is not that of the operands");
  SHARDC_REQUIRE_OK(checkCounts(counts, a.rows()));
  SHARDC_REQUIRE(counts.shape[1] == dw.shape[0], "there is not one matrix for each run");
  return nullptr;
}

const char *acceptsGroupedMatMulBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 5, 1, 2, 1}));
  SHARDC_REQUIRE_OK(checkGradient(call));
  return checkFloat8(call, 3);
}

const char *acceptsGroupedMatMulBwdSquares(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 2, 2, 1}));
  SHARDC_REQUIRE_OK(checkGradient(call));
  SHARDC_REQUIRE(call.attrs.fp8_recipe == 0, "a gradient with squares has 8-bit operands");
  SHARDC_REQUIRE(isScalar(call.out[1], DType::F64), "the sum of squares is not one f64");
  return nullptr;
}

/// dW = Aᵀ·B of each group, summed over its slots.
void runGroupedMatMulBwd(const Call &call) {
  if (call.attrs.fp8_recipe != 0)
    return runGroupedFloat8Bwd(call);
  Scratch scratch(call);
  GradientBuffers buffers(call, scratch);
  RowGroups &groups = buffers.groups;
  const Tensor &a = call.in[0], &b = call.in[1], &dw = call.out[0];
  int64_t k = a.cols(), m = b.cols();
  groups.read();
  for (int64_t group = 0; group < groups.groups; ++group) {
    float *sum = targetF32(dw, group * k * m, buffers.dw);
    std::fill_n(sum, k * m, 0.0f);
    for (int64_t slot = 0; slot < groups.slots; ++slot) {
      int64_t begin = groups.begin(slot, group), rows = groups.rows(slot, group);
      if (rows == 0)
        continue;
      gemm(k, m, rows, 1.0f, {readF32(a, begin * k, rows * k, buffers.a), k, true},
           {readF32(b, begin * m, rows * m, buffers.b), m}, 1.0f, sum, m);
    }
    writeF32(dw, group * k * m, k * m, sum);
  }
}

void runGroupedMatMulBwdSquares(const Call &call) {
  runGroupedMatMulBwd(call);
  double total = 0;
  addSquares(call.out[0], 0, call.out[0].numel(), 1, total);
  *static_cast<double *>(call.out[1].data) = total;
}

template <typename Plain> size_t workspace(const Call &call) {
  return call.attrs.fp8_recipe != 0 ? workspaceOf<Float8Buffers>(call) : workspaceOf<Plain>(call);
}

} // namespace

const Kernel kGroupedMatMul = {"grouped_matmul_host", runGroupedMatMul, acceptsGroupedMatMul,
                               workspace<Buffers>};
const Kernel kGroupedMatMulScaled = {"grouped_matmul_scaled_host", runGroupedScaled,
                                     acceptsGroupedMatMulScaled, workspaceOf<Float8Buffers>};
const Kernel kGroupedMatMulBwd = {"grouped_matmul_bwd_host", runGroupedMatMulBwd,
                                  acceptsGroupedMatMulBwd, workspace<GradientBuffers>};
const Kernel kGroupedMatMulBwdSquares = {"grouped_matmul_bwd_squares_host",
                                         runGroupedMatMulBwdSquares, acceptsGroupedMatMulBwdSquares,
                                         workspaceOf<GradientBuffers>};

} // namespace shardc::kernels::host
