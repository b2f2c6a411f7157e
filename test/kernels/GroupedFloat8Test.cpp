// Grouped products of factors in 8 bits, against the kernels of one product: those quantise each
// run and each matrix, and multiply. Rows that are not counted are NaN and stay as they are.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Float8.h"

namespace shardc::kernels::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSlots = 2, kRuns = 3, kSlotRows = 160, kInner = 150, kColumns = 140;
constexpr Fp8Factors kRecipes[] = {Fp8Factors::Tensorwise, Fp8Factors::Blockwise,
                                   Fp8Factors::Mxfp8};

/// One run has no rows; another one has more than a block, and begins a block in one slot that it
/// ends in the other.
Array counts() { return array(DType::I32, {kSlots, kRuns}, {90, 0, 61, 71, 0, 3}); }
/// The rows of a run, of both slots.
std::vector<int64_t> rowsOf(int64_t run) {
  std::vector<int64_t> rows;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    auto at = static_cast<size_t>(slot * kRuns);
    std::vector<double> all = counts().values;
    auto first = static_cast<int64_t>(run == 2 ? all[at] : 0);
    for (int64_t i = 0; i < static_cast<int64_t>(all[at + static_cast<size_t>(run)]); ++i)
      rows.push_back(slot * kSlotRows + first + i);
  }
  return rows;
}

/// Numbers of very different sizes, and NaN where rows are not there.
Array rowsWith(int64_t cols, uint64_t seed) {
  Array rows = constant(DType::BF16, {kSlots * kSlotRows, cols}, kNan);
  Array numbers = randoms(DType::BF16, rows.shape, seed);
  for (int64_t run = 0; run < kRuns; ++run)
    for (int64_t row : rowsOf(run))
      for (int64_t c = 0; c < cols; ++c) {
        double size = std::ldexp(1.0, static_cast<int>((row * 7 + c / 9 * 5) % 13) - 6);
        rows.values[static_cast<size_t>(row * cols + c)] = size * numbers[row * cols + c];
      }
  return rows;
}

Array matrixOf(const Array &rows, const std::vector<int64_t> &which) {
  int64_t cols = rows.shape[1];
  std::vector<double> values;
  for (int64_t row : which)
    for (int64_t c = 0; c < cols; ++c)
      values.push_back(rows[row * cols + c]);
  return array(DType::BF16, {static_cast<int64_t>(which.size()), cols}, std::move(values));
}

/// The factor in 8 bits with its scales, turned where the sum runs along its columns.
std::pair<Array, Array> quantized(const Array &x, Fp8Factors recipe, DType type, bool isTurned,
                                  bool isWeight) {
  bool isWhole = recipe == Fp8Factors::Tensorwise;
  KernelRun run(isWhole ? "quantize" : "quantize_blocks");
  run.attrs.transposed = isTurned;
  run.in(x);
  if (isWhole) {
    KernelRun amax("amax");
    run.in(amax.in(x).out(DType::F32, {1}).run()[0]);
  }
  Extents q = {x.shape[isTurned ? 1 : 0], x.shape[isTurned ? 0 : 1]};
  bool isSmall = recipe == Fp8Factors::Mxfp8;
  Extents scales = scalesOf(isSmall    ? ScaleBlocks::Rows32
                            : isWeight ? ScaleBlocks::Squares128
                                       : ScaleBlocks::Rows128,
                            q);
  run.out(type, {q.rows, q.cols});
  if (isWhole)
    run.out(DType::F32, {1});
  else
    run.out(isSmall ? DType::U8 : DType::F32, {scales.rows, scales.cols});
  std::vector<Array> made = run.run();
  return {made[0], made[1]};
}

std::vector<double> product(const std::pair<Array, Array> &a, const std::pair<Array, Array> &b) {
  KernelRun run("matmul_scaled");
  run.in(a.first).in(b.first).in(a.second).in(b.second);
  return run.out(DType::BF16, {a.first.shape[0], b.first.shape[0]}).run()[0].values;
}

DType typeOfFirst(bool isE5m2) { return isE5m2 ? DType::F8E5M2 : DType::F8E4M3; }

TEST(GroupedFloat8, ProductsAreThoseOfEachRunByItself) {
  for (Fp8Factors recipe : kRecipes)
    for (bool isTurned : {false, true})
      for (bool isE5m2 : {false, true}) {
        SCOPED_TRACE(testing::Message() << "recipe " << static_cast<int>(recipe) << " turned "
                                        << isTurned << " e5m2 " << isE5m2);
        Array a = rowsWith(kInner, 1);
        std::vector<int64_t> shape = {isTurned ? kColumns : kInner, isTurned ? kInner : kColumns};
        Array b = randoms(DType::BF16, {kRuns, shape[0], shape[1]}, 2);
        KernelRun run("grouped_matmul");
        run.attrs.trans_b = isTurned, run.attrs.e5m2 = isE5m2;
        run.attrs.fp8_recipe = static_cast<int64_t>(recipe);
        Array before = constant(DType::BF16, {kSlots * kSlotRows, kColumns}, kNan);
        Array got = run.in(a).in(b).in(counts()).over(before).run()[0];
        for (int64_t e : {0, 2}) {
          auto from = b.values.begin() + e * kInner * kColumns;
          Array matrix = array(DType::BF16, shape, {from, from + kInner * kColumns});
          std::vector<double> want =
              product(quantized(matrixOf(a, rowsOf(e)), recipe, typeOfFirst(isE5m2), false, false),
                      quantized(matrix, recipe, DType::F8E4M3, !isTurned, true));
          expectClose(matrixOf(got, rowsOf(e)), want, {1e-5, 2}, "run " + std::to_string(e));
        }
        EXPECT_TRUE(std::isnan(got[(kSlotRows - 1) * kColumns])) << "a row that is not there";
      }
}

TEST(GroupedFloat8, GradientsAreThoseOfEachRunByItself) {
  for (Fp8Factors recipe : kRecipes)
    for (bool isE5m2 : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "recipe " << static_cast<int>(recipe) << " e5m2 " << isE5m2);
      Array a = rowsWith(kInner, 3), b = rowsWith(kColumns, 4);
      KernelRun run("grouped_matmul_bwd");
      run.attrs.fp8_recipe = static_cast<int64_t>(recipe), run.attrs.e5m2 = isE5m2;
      run.in(a).in(b).in(counts()).out(DType::BF16, {kRuns, kInner, kColumns});
      Array got = run.run()[0];
      for (int64_t e = 0; e < kRuns; ++e) {
        auto from = got.values.begin() + e * kInner * kColumns;
        Array part = array(DType::BF16, {kInner, kColumns}, {from, from + kInner * kColumns});
        std::vector<double> want(part.values.size(), 0.0);
        if (!rowsOf(e).empty())
          want =
              product(quantized(matrixOf(a, rowsOf(e)), recipe, typeOfFirst(isE5m2), true, false),
                      quantized(matrixOf(b, rowsOf(e)), recipe, DType::F8E4M3, true, false));
        expectClose(part, want, {1e-3, 2}, "matrix " + std::to_string(e));
      }
    }
}

TEST(GroupedFloat8, WhatIsNotFiniteIsNotLost) {
  Array a = rowsWith(kInner, 5), b = randoms(DType::BF16, {kRuns, kInner, kColumns}, 6);
  a.values[0] = std::numeric_limits<double>::infinity();
  for (Fp8Factors recipe : kRecipes) {
    KernelRun run("grouped_matmul");
    run.attrs.fp8_recipe = static_cast<int64_t>(recipe);
    Array before = constant(DType::BF16, {kSlots * kSlotRows, kColumns}, kNan);
    Array got = run.in(a).in(b).in(counts()).over(before).run()[0];
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_FALSE(std::isnan(got[rowsOf(2)[0] * kColumns])) << "of another run";
  }
}

TEST(GroupedFloat8, RefusesAnotherRecipe) {
  KernelRun run("grouped_matmul");
  run.attrs.fp8_recipe = 4;
  run.in(constant(DType::F32, {2, 3}, 0)).in(constant(DType::F32, {1, 3, 4}, 0));
  run.in(constant(DType::I32, {1, 1}, 2)).out(DType::F32, {2, 4});
  EXPECT_STREQ(run.refusal(), "there is no such recipe of 8-bit factors");
}

} // namespace
} // namespace shardc::kernels::test
