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

template <int kAmax> const char *acceptsProduct(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsCounts<2>(call));
  return checkFloat8(call, kAmax);
}

const char *acceptsGroupedMatMulScaled(const Call &call) {
  SHARDC_REQUIRE(isScaledWhole(static_cast<Fp8Factors>(call.attrs.fp8_recipe)),
                 "the recipe has no scales of whole matrices");
  return acceptsProduct<4>(call);
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

const char *acceptsGroupedMatMulBwdSquares(const Call &call) {
  SHARDC_REQUIRE(call.attrs.fp8_recipe == 0, "a gradient with squares has 8-bit operands");
  return acceptsCounts<2>(call);
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

const Kernel kGroupedMatMul =
    kernelOf<OpKind::GroupedMatMul, acceptsProduct<3>>(runGroupedMatMul, workspace<Buffers>);
const Kernel kGroupedMatMulScaled =
    kernelOf<OpKind::GroupedMatMulScaled, acceptsGroupedMatMulScaled>(runGroupedScaled,
                                                                      workspaceOf<Float8Buffers>);
const Kernel kGroupedMatMulBwd = kernelOf<OpKind::GroupedMatMulBwd, acceptsProduct<3>, 1>(
    runGroupedMatMulBwd, workspace<GradientBuffers>);
const Kernel kGroupedMatMulBwdSquares =
    kernelOf<OpKind::GroupedMatMulBwdSquares, acceptsGroupedMatMulBwdSquares, 1>(
        runGroupedMatMulBwdSquares, workspaceOf<GradientBuffers>);

} // namespace shardc::kernels::host
