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
#include "kernels/host/RowGroups.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/host/Float8Scales.h"
#include "runtime/base/Float8.h"

namespace shardc::kernels::host {
namespace {

/// A matrix in fp32 before quantisation.
struct Operand {
  float *numbers;
  Extents extents;
  bool isSummedDown; ///< the product sums along its columns
  bool isRows;       ///< the rows of a group; otherwise an expert's matrix
  DType type;
};

/// Replaces the numbers of a block by those that their codes in 8 bits stand for.
void roundBlock(const Operand &operand, int64_t row, int64_t col, Extents block, bool isE8M0) {
  int64_t rowEnd = std::min(row + block.rows, operand.extents.rows);
  int64_t colEnd = std::min(col + block.cols, operand.extents.cols);
  uint32_t most = 0;
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c)
      most = std::max(most, magnitudeBits(operand.numbers[r * operand.extents.cols + c]));
  BlockScale scale = blockScaleOf(std::bit_cast<float>(most), operand.type, isE8M0);
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c) {
      float &number = operand.numbers[r * operand.extents.cols + c];
      number = ofBits(toBits(number * scale.multiplier, operand.type), operand.type) * scale.scale;
    }
}

/// The expected amax of an operand, and where its actual one is recorded.
struct Amax {
  const float *expected = nullptr; ///< null: use the actual amax
  float *seen = nullptr;           ///< null: do not record
};

float roundWhole(const Operand &operand, const Amax &tensorAmax) {
  int64_t count = operand.extents.rows * operand.extents.cols;
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, magnitudeBits(operand.numbers[i]));
  if (tensorAmax.seen)
    *tensorAmax.seen = floatOfLargest(std::max(most, std::bit_cast<uint32_t>(*tensorAmax.seen)));
  float amax = tensorAmax.expected ? *tensorAmax.expected : std::bit_cast<float>(most);
  float multiplier = multiplierOf(amax, operand.type);
  for (int64_t i = 0; i < count; ++i) {
    float &number = operand.numbers[i]; // saturated, except if not finite
    number = ofBits(toBits(std::isfinite(number) ? number * multiplier : kNan, operand.type),
                    operand.type);
  }
  return 1.0f / multiplier;
}

/// Quantises the numbers. Returns the scale, which the product of the codes must be multiplied by.
float quantize(const Operand &operand, Fp8Factors recipe, const Amax &tensorAmax) {
  if (isScaledWhole(recipe))
    return roundWhole(operand, tensorAmax);
  bool isE8M0 = recipe == Fp8Factors::Mxfp8;
  Extents block = blockOf(isE8M0           ? ScaleBlocks::Rows32
                          : operand.isRows ? ScaleBlocks::Rows128
                                           : ScaleBlocks::Squares128);
  if (operand.isSummedDown)
    std::swap(block.rows, block.cols);
  for (int64_t row = 0; row < operand.extents.rows; row += block.rows)
    for (int64_t col = 0; col < operand.extents.cols; col += block.cols)
      roundBlock(operand, row, col, block, isE8M0);
  return 1.0f;
}

void copyF32(const Tensor &from, int64_t offset, int64_t count, float *to) {
  const float *numbers = readF32(from, offset, count, to);
  if (numbers != to)
    std::copy_n(numbers, count, to);
}

/// Copies the group's rows of all slots to `to`, and returns their number.
int64_t gatherGroup(const Tensor &from, const RowGroups &groups, int64_t group, float *to) {
  int64_t cols = from.cols(), found = 0;
  for (int64_t slot = 0; slot < groups.slots; ++slot) {
    int64_t rows = groups.rows(slot, group);
    copyF32(from, groups.begin(slot, group) * cols, rows * cols, to + found * cols);
    found += rows;
  }
  return found;
}

void scaleAll(float *numbers, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i)
    numbers[i] *= scale;
}

DType typeOfFirst(const Call &call) { return call.attrs.e5m2 ? DType::F8E5M2 : DType::F8E4M3; }
Fp8Factors recipeOf(const Call &call) { return static_cast<Fp8Factors>(call.attrs.fp8_recipe); }

/// Amaxes of the operand with this slot, for one of this member's groups. Operand `amax` is the
/// first one with amaxes.
Amax magnitudeOf(const Call &call, int amax, int64_t slot, int64_t group) {
  if (call.inCount <= amax)
    return {};
  int64_t groups = call.in[2].shape[1], at = slot + call.index * groups + group;
  return {static_cast<const float *>(call.in[amax].data) + at,
          call.outCount > 1 ? static_cast<float *>(call.out[1].data) + at : nullptr};
}

/// Scratch buffers in fp32 for one group: its rows from all slots (a), the other operand (b), and
/// their product (c).
struct Float8Buffers {
  RowGroups groups;
  float *a, *b, *c;

  /// The buffers of a grouped_matmul, grouped_matmul_scaled, or gradient call.
  Float8Buffers(const Call &call, Scratch &scratch)
      : groups(call.in[2], call.in[0].shape[0], scratch) {
    const Tensor &second = call.in[1], &result = call.out[0];
    a = scratch.take<float>(call.in[0].numel());
    b = scratch.take<float>(second.rank == 3 ? second.shape[1] * second.shape[2] : second.numel());
    c = scratch.take<float>(result.rank == 3 ? result.shape[1] * result.shape[2] : result.numel());
  }
};

/// Groups without rows multiply nothing, but the amaxes of their matrices are recorded.
template <bool kIsScaled> void runFloat8(const Call &call, Float8Buffers &buffers) {
  constexpr int kAmax = kIsScaled ? 4 : 3;
  RowGroups &groups = buffers.groups;
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  bool isTransposed = call.attrs.trans_b;
  Fp8Factors recipe = recipeOf(call);
  int64_t k = a.cols(), m = c.cols();
  groups.read();
  for (int64_t group = 0; group < groups.groups; ++group) {
    float scale = 1;
    if constexpr (kIsScaled) {
      const auto *codes = static_cast<const uint8_t *>(b.data) + group * k * m;
      std::transform(codes, codes + k * m, buffers.b,
                     [](uint8_t code) { return ofBits(code, DType::F8E4M3); });
      scale = static_cast<const float *>(call.in[3].data)[group * call.in[3].cols()];
    } else {
      copyF32(b, group * k * m, k * m, buffers.b);
      scale =
          quantize({buffers.b, {k * m / b.cols(), b.cols()}, !isTransposed, false, DType::F8E4M3},
                   recipe, magnitudeOf(call, kAmax, call.attrs.b_slot, group));
    }
    int64_t rows = gatherGroup(a, groups, group, buffers.a);
    if (rows == 0)
      continue;
    scale *= quantize({buffers.a, {rows, k}, false, true, typeOfFirst(call)}, recipe,
                      magnitudeOf(call, kAmax, call.attrs.slot, group));
    gemm(rows, m, k, 1.0f, {buffers.a, k}, {buffers.b, b.cols(), isTransposed}, 0.0f, buffers.c, m);
    scaleAll(buffers.c, rows * m, scale);
    for (int64_t slot = 0, done = 0; slot < groups.slots; done += groups.rows(slot++, group))
      writeF32(c, groups.begin(slot, group) * m, groups.rows(slot, group) * m,
               buffers.c + done * m);
  }
}

/// Null, or the reason why the fp8 recipe, or the amaxes of the operands from operand `amax` on,
/// are invalid.
const char *checkFloat8(const Call &call, int amax) {
  SHARDC_REQUIRE(call.attrs.fp8_recipe <= static_cast<int64_t>(Fp8Factors::Delayed),
                 "fp8_recipe is not the number of a recipe");
  bool isDelayed = recipeOf(call) == Fp8Factors::Delayed;
  SHARDC_REQUIRE(isDelayed == (call.inCount > amax), "expected amaxes are not those of the recipe");
  SHARDC_REQUIRE(call.inCount - amax <= 1 ? call.outCount == 1 : call.outCount == 2,
                 "amaxes are seen in one of operands and results");
  if (!isDelayed)
    return nullptr;
  int64_t groups = call.groupSize * call.in[2].shape[1];
  SHARDC_REQUIRE(std::max(call.attrs.slot, call.attrs.b_slot) <= call.in[amax].numel() - groups,
                 "a slot is beyond the amaxes");
  return nullptr;
}

/// dW = Aᵀ·B of each group, whose rows from all slots are joined before they are quantized. A group
/// without rows has a gradient of 0.
void runFloat8Bwd(const Call &call, Float8Buffers &buffers) {
  constexpr int kAmax = 3;
  RowGroups &groups = buffers.groups;
  const Tensor &a = call.in[0], &b = call.in[1], &dw = call.out[0];
  int64_t k = a.cols(), m = b.cols();
  groups.read();
  for (int64_t group = 0; group < groups.groups; ++group) {
    int64_t rows = gatherGroup(a, groups, group, buffers.a);
    gatherGroup(b, groups, group, buffers.b);
    std::fill_n(buffers.c, k * m, 0.0f);
    if (rows > 0) {
      Fp8Factors recipe = recipeOf(call);
      float scale = quantize({buffers.a, {rows, k}, true, true, typeOfFirst(call)}, recipe,
                             magnitudeOf(call, kAmax, call.attrs.slot, group)) *
                    quantize({buffers.b, {rows, m}, true, true, DType::F8E4M3}, recipe,
                             magnitudeOf(call, kAmax, call.attrs.b_slot, group));
      gemm(k, m, rows, 1.0f, {buffers.a, k, true}, {buffers.b, m}, 0.0f, buffers.c, m);
      scaleAll(buffers.c, k * m, scale);
    }
    writeF32(dw, group * k * m, k * m, buffers.c);
  }
}

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
void runPlain(const Call &call, Buffers &buffers) {
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
void runPlainBwd(const Call &call, GradientBuffers &buffers) {
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

void runBwdSquares(const Call &call, GradientBuffers &buffers) {
  runPlainBwd(call, buffers);
  double total = 0;
  addSquares(call.out[0], 0, call.out[0].numel(), 1, total);
  *static_cast<double *>(call.out[1].data) = total;
}

/// Products in 8 bits have other buffers.
template <auto kPlain, auto kFloat8> const Work &formOf(const Call &call) {
  return call.attrs.fp8_recipe != 0 ? withBuffers<kFloat8> : withBuffers<kPlain>;
}
template <auto kPlain, auto kFloat8>
constexpr Work byRecipe = {
    [](const Call &call) { formOf<kPlain, kFloat8>(call).run(call); },
    [](const Call &call) { return formOf<kPlain, kFloat8>(call).workspaceBytes(call); }};

} // namespace

SHARDC_HOST_KERNEL(GroupedMatMul, (byRecipe<runPlain, runFloat8<false>>), acceptsProduct<3>);
SHARDC_HOST_KERNEL(GroupedMatMulScaled, withBuffers<runFloat8<true>>, acceptsGroupedMatMulScaled);
SHARDC_HOST_KERNEL(GroupedMatMulBwd, (byRecipe<runPlainBwd, runFloat8Bwd>), acceptsProduct<3>, 1);
SHARDC_HOST_KERNEL(GroupedMatMulBwdSquares, withBuffers<runBwdSquares>,
                   acceptsGroupedMatMulBwdSquares, 1);

} // namespace shardc::kernels::host
