// Compares grouped products of 8-bit operands with kernels for single products, which quantize each
// run and each matrix and multiply them. Rows that are not counted are NaN and must stay NaN.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Float8.h"

namespace shardc::kernels::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSlots = 2, kGroups = 3, kSlotRows = 160, kInner = 150, kColumns = 140;
constexpr Fp8Factors kRecipes[] = {Fp8Factors::Tensorwise, Fp8Factors::Blockwise,
                                   Fp8Factors::Mxfp8};

/// One run has no rows; another has more rows than a block, so a block begins in one slot and ends
/// in the other.
Array counts() { return array(DType::I32, {kSlots, kGroups}, {90, 0, 61, 71, 0, 3}); }
/// The rows of a run in both slots.
std::vector<int64_t> rowsOf(int64_t run) {
  std::vector<int64_t> rows;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    auto at = static_cast<size_t>(slot * kGroups);
    std::vector<double> all = counts().values;
    auto first = static_cast<int64_t>(run == 2 ? all[at] : 0);
    for (int64_t i = 0; i < static_cast<int64_t>(all[at + static_cast<size_t>(run)]); ++i)
      rows.push_back(slot * kSlotRows + first + i);
  }
  return rows;
}

/// Numbers of very different magnitudes, and NaN in rows that are not counted.
Array rowsWith(int64_t cols, uint64_t seed) {
  Array rows = constant(DType::BF16, {kSlots * kSlotRows, cols}, kNan);
  Array numbers = randoms(DType::BF16, rows.shape, seed);
  for (int64_t run = 0; run < kGroups; ++run)
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

/// The operand in 8 bits with its scales, transposed if the sum runs along its columns.
std::pair<Array, Array> quantized(const Array &x, Fp8Factors recipe, DType type, bool isTransposed,
                                  bool isWeight) {
  bool isWhole = recipe == Fp8Factors::Tensorwise;
  KernelRun run(isWhole ? "quantize" : "quantize_blocks");
  run.attrs.transposed = isTransposed;
  run.in(x);
  if (isWhole) {
    KernelRun amax("amax");
    run.in(amax.in(x).out(DType::F32, {1}).run()[0]);
  }
  Extents q = {x.shape[isTransposed ? 1 : 0], x.shape[isTransposed ? 0 : 1]};
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
    for (bool isTransposed : {false, true})
      for (bool isE5m2 : {false, true}) {
        SCOPED_TRACE(testing::Message() << "recipe " << static_cast<int>(recipe) << " turned "
                                        << isTransposed << " e5m2 " << isE5m2);
        Array a = rowsWith(kInner, 1);
        std::vector<int64_t> shape = {isTransposed ? kColumns : kInner,
                                      isTransposed ? kInner : kColumns};
        Array b = randoms(DType::BF16, {kGroups, shape[0], shape[1]}, 2);
        KernelRun run("grouped_matmul");
        run.attrs.trans_b = isTransposed, run.attrs.e5m2 = isE5m2;
        run.attrs.fp8_recipe = static_cast<int64_t>(recipe);
        Array before = constant(DType::BF16, {kSlots * kSlotRows, kColumns}, kNan);
        Array got = run.in(a).in(b).in(counts()).over(before).run()[0];
        for (int64_t e : {0, 2}) {
          auto from = b.values.begin() + e * kInner * kColumns;
          Array matrix = array(DType::BF16, shape, {from, from + kInner * kColumns});
          std::vector<double> want =
              product(quantized(matrixOf(a, rowsOf(e)), recipe, typeOfFirst(isE5m2), false, false),
                      quantized(matrix, recipe, DType::F8E4M3, !isTransposed, true));
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
      run.in(a).in(b).in(counts()).out(DType::BF16, {kGroups, kInner, kColumns});
      Array got = run.run()[0];
      for (int64_t e = 0; e < kGroups; ++e) {
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
  Array a = rowsWith(kInner, 5), b = randoms(DType::BF16, {kGroups, kInner, kColumns}, 6);
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

// ---- delayed scaling ----

constexpr int64_t kMembers = 2, kMember = 1, kFirstSlot = 2, kSecondSlot = 9;
constexpr int64_t kAmaxes = kSecondSlot + kMembers * kGroups + 1;

/// Expected amaxes, which differ from each other, below and above the actual ones.
Array expected() {
  Array amax = constant(DType::F32, {kAmaxes}, 0);
  for (int64_t i = 0; i < kAmaxes; ++i)
    amax.values[static_cast<size_t>(i)] =
        std::ldexp(1.0 + static_cast<double>(i) / 16, static_cast<int>(i) % 5);
  return amax;
}

/// The slots of the second member follow those of the first member.
int64_t slotOf(int64_t first, int64_t run) { return first + kMember * kGroups + run; }

KernelRun delayedRun(const char *op, bool isE5m2) {
  KernelRun run(op);
  run.attrs.fp8_recipe = static_cast<int64_t>(Fp8Factors::Delayed), run.attrs.e5m2 = isE5m2;
  run.attrs.slot = kFirstSlot, run.attrs.b_slot = kSecondSlot;
  run.index = kMember, run.groupSize = kMembers;
  return run;
}

/// The operand as quantize_delayed makes it; also writes its amax to `seen`.
std::pair<Array, Array> quantizedBy(int64_t slot, const Array &x, DType type, bool isTransposed,
                                    Array &seen) {
  KernelRun run("quantize_delayed");
  run.attrs.transposed = isTransposed, run.attrs.slot = slot;
  run.in(x).in(expected()).in(seen);
  run.out(type, {x.shape[isTransposed ? 1 : 0], x.shape[isTransposed ? 0 : 1]})
      .out(DType::F32, {1});
  std::vector<Array> made = run.inPlace(2).run();
  seen = made[2];
  return {made[0], made[1]};
}

Array matrixAt(const Array &stack, int64_t run) {
  int64_t size = stack.shape[1] * stack.shape[2];
  auto from = stack.values.begin() + run * size;
  return array(stack.dtype, {stack.shape[1], stack.shape[2]}, {from, from + size});
}

TEST(GroupedFloat8, DelayedProductsAreThoseOfEachRunByItself) {
  for (bool isTransposed : {false, true})
    for (bool isE5m2 : {false, true}) {
      SCOPED_TRACE(testing::Message() << "turned " << isTransposed << " e5m2 " << isE5m2);
      Array a = rowsWith(kInner, 1);
      Array b = randoms(DType::BF16,
                        isTransposed ? std::vector<int64_t>{kGroups, kColumns, kInner}
                                     : std::vector<int64_t>{kGroups, kInner, kColumns},
                        2);
      Array before = constant(DType::BF16, {kSlots * kSlotRows, kColumns}, kNan);
      Array none = constant(DType::F32, {kAmaxes}, 0), want = none;
      KernelRun run = delayedRun("grouped_matmul", isE5m2);
      run.attrs.trans_b = isTransposed;
      run.in(a).in(b).in(counts()).in(expected()).in(none);
      std::vector<Array> got = run.over(before).inPlace(4).run();
      for (int64_t e = 0; e < kGroups; ++e) { // weights also count for experts without rows
        std::pair<Array, Array> weights =
            quantizedBy(slotOf(kSecondSlot, e), matrixAt(b, e), DType::F8E4M3, !isTransposed, want);
        if (rowsOf(e).empty())
          continue;
        std::pair<Array, Array> rows = quantizedBy(slotOf(kFirstSlot, e), matrixOf(a, rowsOf(e)),
                                                   typeOfFirst(isE5m2), false, want);
        expectClose(matrixOf(got[0], rowsOf(e)), product(rows, weights), {1e-5, 2},
                    "run " + std::to_string(e));
      }
      EXPECT_EQ(got[1].values, want.values);
      // Without the array of amaxes, as in evaluations, the product is the same.
      KernelRun blind = delayedRun("grouped_matmul", isE5m2);
      blind.attrs.trans_b = isTransposed;
      Array same = blind.in(a).in(b).in(counts()).in(expected()).over(before).run()[0];
      for (int64_t e : {0, 2})
        EXPECT_EQ(matrixOf(same, rowsOf(e)).values, matrixOf(got[0], rowsOf(e)).values);
    }
}

TEST(GroupedFloat8, DelayedGradientsAreThoseOfEachRunByItself) {
  for (bool isE5m2 : {false, true}) {
    Array a = rowsWith(kInner, 3), b = rowsWith(kColumns, 4);
    Array want = constant(DType::F32, {kAmaxes}, 0);
    KernelRun run = delayedRun("grouped_matmul_bwd", isE5m2);
    run.in(a).in(b).in(counts()).in(expected()).in(want);
    std::vector<Array> got = run.out(DType::BF16, {kGroups, kInner, kColumns}).inPlace(4).run();
    for (int64_t e = 0; e < kGroups; ++e) {
      Array part = matrixAt(got[0], e);
      std::vector<double> product(part.values.size(), 0.0);
      if (!rowsOf(e).empty())
        product = test::product(
            quantizedBy(slotOf(kFirstSlot, e), matrixOf(a, rowsOf(e)), typeOfFirst(isE5m2), true,
                        want),
            quantizedBy(slotOf(kSecondSlot, e), matrixOf(b, rowsOf(e)), DType::F8E4M3, true, want));
      expectClose(part, product, {1e-3, 2}, "matrix " + std::to_string(e));
    }
    EXPECT_EQ(got[1].values, want.values);
  }
}

/// Products of matrices stored in 8 bits equal those of matrices that the product quantizes.
TEST(GroupedFloat8, StoredMatricesAreTakenWithTheirScales) {
  for (Fp8Factors recipe : {Fp8Factors::Tensorwise, Fp8Factors::Delayed})
    for (bool isTransposed : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(recipe) << " turned " << isTransposed);
      Array a = rowsWith(kInner, 1), b = randoms(DType::BF16, {kGroups, kColumns, kInner}, 2);
      if (!isTransposed)
        b.shape = {kGroups, kInner, kColumns};
      Array codes = constant(DType::F8E4M3, b.shape, 0);
      Array scales = constant(DType::F32, {kGroups, 4}, 0),
            none = constant(DType::F32, {kAmaxes}, 0);
      for (int64_t e = 0; e < kGroups; ++e) {
        std::pair<Array, Array> its =
            quantized(matrixAt(b, e), Fp8Factors::Tensorwise, DType::F8E4M3, false, true);
        std::ranges::copy(its.first.values, codes.values.begin() + e * kInner * kColumns);
        scales.values[static_cast<size_t>(e) * 4] = its.second[0];
      }
      bool isDelayed = recipe == Fp8Factors::Delayed;
      KernelRun run = delayedRun("grouped_matmul_scaled", false);
      run.attrs.fp8_recipe = static_cast<int64_t>(recipe), run.attrs.trans_b = isTransposed;
      run.in(a).in(codes).in(counts()).in(scales);
      if (isDelayed)
        run.in(expected()).in(none);
      run.over(constant(DType::BF16, {kSlots * kSlotRows, kColumns}, kNan));
      if (isDelayed)
        run.inPlace(5);
      std::vector<Array> got = run.run();
      for (int64_t e : {0, 2}) {
        Array rows = matrixOf(a, rowsOf(e));
        std::pair<Array, Array> first =
            isDelayed ? quantizedBy(slotOf(kFirstSlot, e), rows, DType::F8E4M3, false, none)
                      : quantized(rows, recipe, DType::F8E4M3, false, false);
        expectClose(matrixOf(got[0], rowsOf(e)),
                    product(first, quantized(matrixAt(b, e), Fp8Factors::Tensorwise, DType::F8E4M3,
                                             !isTransposed, true)),
                    {1e-5, 2}, "run " + std::to_string(e));
      }
      if (isDelayed) {
        EXPECT_EQ(got[1].values, none.values) << "weights are not looked at";
      }
    }
}

TEST(GroupedFloat8, RefusesAmaxesThatDoNotFit) {
  auto refusalOf = [](int64_t slot, int64_t count, bool isSeen, Fp8Factors recipe) {
    KernelRun run = delayedRun("grouped_matmul", false);
    run.attrs.slot = slot, run.attrs.b_slot = 0;
    run.attrs.fp8_recipe = static_cast<int64_t>(recipe);
    run.in(constant(DType::F32, {2, 3}, 0)).in(constant(DType::F32, {1, 3, 4}, 0));
    run.in(constant(DType::I32, {1, 1}, 2)).in(constant(DType::F32, {count}, 1));
    if (isSeen)
      run.in(constant(DType::F32, {count}, 1));
    run.out(DType::F32, {2, 4});
    const char *reason = run.refusal();
    return std::string(reason ? reason : "");
  };
  EXPECT_EQ(refusalOf(0, 2, false, Fp8Factors::Delayed), "");
  EXPECT_EQ(refusalOf(1, 2, false, Fp8Factors::Delayed), "a slot is beyond the amaxes");
  EXPECT_EQ(refusalOf(0, 2, true, Fp8Factors::Delayed),
            "amaxes are seen in one of operands and results");
  EXPECT_EQ(refusalOf(0, 2, false, Fp8Factors::Tensorwise),
            "expected amaxes are not those of the recipe");
}

TEST(GroupedFloat8, RefusesAnotherRecipe) {
  KernelRun run("grouped_matmul");
  run.attrs.fp8_recipe = 5;
  run.in(constant(DType::F32, {2, 3}, 0)).in(constant(DType::F32, {1, 3, 4}, 0));
  run.in(constant(DType::I32, {1, 1}, 2)).out(DType::F32, {2, 4});
  EXPECT_STREQ(run.refusal(), "fp8_recipe is not the number of a recipe");
}

} // namespace
} // namespace shardc::kernels::test
