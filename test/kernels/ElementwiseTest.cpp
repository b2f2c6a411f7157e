// add, bias_add, cast, fill, and the reductions: bitwise where fp32 is exact.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr int64_t kSizes[] = {1, 511, 1300};

double addFloats(double a, double b) {
  return static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
}

TEST(Elementwise, AddRoundsOnce) {
  for (int64_t size : kSizes)
    for (DType typeA : kDataTypes)
      for (DType typeC : kDataTypes) {
        Array a = randoms(typeA, {size}, 1), b = randoms(DType::BF16, {size}, 2);
        Array old = randoms(typeC, {size}, 3), sum = {DType::F32, a.shape, {}};
        for (size_t i = 0; i < a.values.size(); ++i)
          sum.values.push_back(addFloats(a.values[i], b.values[i]));
        KernelRun plain("add"), accumulating("add");
        expectAccumulated(plain.in(a).in(b).out(typeC, {size}).run()[0], sum,
                          constant(typeC, {size}, 0));
        expectAccumulated(accumulating.in(a).in(b).accumulate(old).run()[0], sum, old);
      }
}

TEST(Elementwise, BiasAddRepeatsTheBias) {
  for (int64_t cols : kSizes)
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {3, cols}, 4), bias = randoms(dtype, {cols}, 5);
      std::vector<double> want;
      for (size_t i = 0; i < x.values.size(); ++i)
        want.push_back(roundTo(dtype, addFloats(x.values[i], bias.values[i % bias.values.size()])));
      KernelRun run("bias_add");
      EXPECT_EQ(run.in(x).in(bias).out(dtype, x.shape).run()[0].values, want);
    }
}

TEST(Elementwise, CastRoundsToNearestEven) {
  // 1 + 2^-8 is between two neighbours and is rounded to the even one; so is 1 + 3·2^-8.
  std::vector<double> values = {1, 1 + 0x1p-8, 1 + 0x1.8p-7, 1 + 0x1.02p-8, -0x1p-130, 3e38};
  Array x = {DType::F32, {6}, {}};
  for (double value : values)
    x.values.push_back(static_cast<double>(static_cast<float>(value)));
  KernelRun down("cast"), up("cast");
  Array rounded = down.in(x).out(DType::BF16, {6}).run()[0];
  EXPECT_EQ(rounded[0], 1);
  EXPECT_EQ(rounded[1], 1);
  EXPECT_EQ(rounded[2], 1 + 0x1p-6);
  EXPECT_EQ(rounded[3], 1 + 0x1p-7);
  EXPECT_EQ(rounded[4], -0x1p-130);
  EXPECT_NEAR(rounded[5], 3e38, 3e38 * 0x1p-8);
  EXPECT_EQ(up.in(rounded).out(DType::F32, {6}).run()[0].values, rounded.values);
}

TEST(Elementwise, CastKeepsWhatIsNotFinite) {
  double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  KernelRun run("cast");
  Array y = run.in({DType::F32, {3}, {inf, -inf, nan}}).out(DType::BF16, {3}).run()[0];
  EXPECT_EQ(y[0], inf);
  EXPECT_EQ(y[1], -inf);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(Elementwise, CastAddsExactly) {
  Array x = randoms(DType::BF16, {1000}, 6), old = randoms(DType::F32, {1000}, 7);
  KernelRun run("cast");
  expectAccumulated(run.in(x).accumulate(old).run()[0], x, old);
}

TEST(Elementwise, FillWritesEveryElement) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I64}) {
    KernelRun run("fill");
    run.attrs.value = -3;
    EXPECT_EQ(run.out(dtype, {5, 101}).run()[0].values, constant(dtype, {505}, -3).values);
  }
}

TEST(Elementwise, FillRefusesAFractionForIntegers) {
  KernelRun run("fill");
  run.attrs.value = 0.5;
  EXPECT_STREQ(run.out(DType::I32, {5}).refusal(),
               "the value to fill with is not an integer of the result's type");
}

TEST(Reduce, RowsAreSummedByColumn) {
  for (int64_t cols : kSizes)
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {2, 9, cols}, 8), old = randoms(dtype, {cols}, 9);
      std::vector<double> want(static_cast<size_t>(cols));
      for (size_t i = 0; i < x.values.size(); ++i)
        want[i % want.size()] += x.values[i];
      KernelRun plain("reduce_rows"), accumulating("reduce_rows");
      Array sum = plain.in(x).out(DType::F32, {cols}).run()[0];
      expectClose(sum, want, {0, 1}, "y"); // summed in fp64, rounded once
      expectAccumulated(accumulating.in(x).accumulate(old).run()[0], sum, old);
    }
}

TEST(Cast, ScalesInF32) {
  Array x = randoms(DType::BF16, {33}, 19);
  KernelRun run("cast");
  run.attrs.scale = 0.375;
  Array got = run.in(x).out(DType::F32, {33}).run()[0];
  for (int64_t i = 0; i < 33; ++i)
    EXPECT_EQ(got[i], static_cast<double>(static_cast<float>(x[i]) * 0.375f));
}

TEST(Reduce, TokensAreCounted) {
  Array mask = indices(DType::F32, {3, 17}, 10, 2);
  double want = 0;
  for (double value : mask.values)
    want += value;
  KernelRun run("token_count");
  EXPECT_EQ(run.in(mask).out(DType::F32, {1}).run()[0][0], want);
}

TEST(Roll, TakesWhatComesLaterInEachSequence) {
  KernelRun ids("roll"), mask("roll"), kept("roll"), empty("roll");
  ids.attrs.by = 2;
  Array x = array(DType::I32, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(ids.in(x).out(DType::I32, {2, 4}).run()[0].values,
            (std::vector<double>{3, 4, 0, 0, 7, 8, 0, 0}));
  mask.attrs.by = kept.attrs.by = empty.attrs.by = 1;
  Array ones = array(DType::F32, {2, 4}, {1, 0, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(mask.in(ones).out(DType::F32, {2, 4}).run()[0].values,
            (std::vector<double>{0, 1, 1, 0, 1, 1, 1, 0}));
  kept.attrs.per_token = true; // the weight for 7 tokens is that for 5 tokens
  Array got = kept.in(ones).out(DType::F32, {2, 4}).run()[0];
  expectClose(got, {0, 1.4, 1.4, 0, 1.4, 1.4, 1.4, 0}, {0, 1}, "y");
  empty.attrs.per_token = true;
  Array first = array(DType::F32, {1, 3}, {1, 0, 0});
  EXPECT_EQ(empty.in(first).out(DType::F32, {1, 3}).run()[0].values,
            (std::vector<double>{0, 0, 0}));
}

TEST(Roll, RefusesWhatHasNoSuchPlaces) {
  auto refusal = [](DType dtype, int64_t by, bool keepsSum) {
    KernelRun run("roll");
    run.attrs.by = by, run.attrs.per_token = keepsSum;
    return std::string(run.in(constant(dtype, {2, 4}, 1)).out(dtype, {2, 4}).refusal());
  };
  EXPECT_EQ(refusal(DType::I32, 4, false), "a sequence is not longer than what it is rolled by");
  EXPECT_EQ(refusal(DType::I32, 0, false), "a sequence is not longer than what it is rolled by");
  EXPECT_EQ(refusal(DType::BF16, 1, false), "x is not f32 or i32");
  EXPECT_EQ(refusal(DType::I32, 1, true), "x that is scaled is not f32");
}

ParamRange range(int64_t begin, int64_t end) {
  ParamRange range;
  range.begin = begin;
  range.end = end;
  return range;
}

TEST(Reduce, SquaresOfValidElementsAreSummed) {
  for (DType dtype : kDataTypes) {
    Array a = randoms(dtype, {1200}, 11), b = randoms(DType::F32, {9}, 12);
    KernelRun run("sum_squares");
    run.ranges = {range(0, 600), range(610, 1199), range(2, 3)};
    run.rangesOf = {0, 2, 3};
    double want = b[2] * b[2];
    for (int64_t i = 0; i < 1199; ++i)
      want += i < 600 || i >= 610 ? a[i] * a[i] : 0;
    Array got = run.listed(a).listed(b).out(DType::F64, {1}).run()[0];
    EXPECT_NEAR(got[0], want, want * 1e-13);
  }
}

TEST(Reduce, SquaresDoNotShowHowAShardWasSplit) {
  Array whole = randoms(DType::F32, {3000}, 13);
  KernelRun one("sum_squares");
  one.ranges = {range(0, 3000)};
  double total = one.listed(whole).out(DType::F64, {1}).run()[0][0], parts = 0;
  for (int64_t begin = 0; begin < 3000; begin += 750) {
    KernelRun part("sum_squares");
    part.ranges = {range(begin, begin + 750)};
    parts += part.listed(whole).out(DType::F64, {1}).run()[0][0];
  }
  EXPECT_EQ(static_cast<float>(std::sqrt(total)), static_cast<float>(std::sqrt(parts)));
}

TEST(Reduce, SumsOfSquaresAreAddedToThem) {
  Array shard = randoms(DType::F32, {50}, 14);
  KernelRun run("sum_squares");
  run.ranges = {range(0, 50)};
  run.rangesOf = {0, 0, 1, 1};
  double want = 3.5 + 1e-9;
  for (int64_t i = 0; i < 50; ++i)
    want += shard[i] * shard[i];
  run.listed(constant(DType::F64, {1}, 3.5)).listed(shard).listed(constant(DType::F64, {1}, 1e-9));
  Array got = run.out(DType::F64, {1}).run()[0];
  EXPECT_NEAR(got[0], want, want * 1e-14);
}

/// Ranks with the same elements each count a part of the squares, for shards and for sums.
TEST(Reduce, SquaresAreDividedByTheCopiesOfTheirBlock) {
  Array a = randoms(DType::F32, {70}, 15), b = randoms(DType::BF16, {30}, 16);
  double squaresOfA = 0, squaresOfB = 0;
  for (double value : a.values)
    squaresOfA += value * value;
  for (double value : b.values)
    squaresOfB += value * value;
  KernelRun run("sum_squares");
  run.ranges = {range(0, 70), range(0, 30)};
  run.rangesOf = {0, 1, 2, 2};
  run.copies = {2, 3, 4};
  run.listed(a).listed(b).listed(constant(DType::F64, {1}, 10)).out(DType::F64, {1});
  double want = squaresOfA / 2 + squaresOfB / 3 + 10.0 / 4;
  EXPECT_NEAR(run.run()[0][0], want, want * 1e-13);
}

/// With equal numbers of copies, the sum is divided once, so its bits do not depend on how many
/// operands there are.
TEST(Reduce, EqualCopiesDivideTheSum) {
  Array a = randoms(DType::F32, {70}, 17), b = randoms(DType::F32, {30}, 18);
  auto sumOf = [&](std::vector<int64_t> copies) {
    KernelRun run("sum_squares");
    run.ranges = {range(0, 70), range(0, 30)};
    run.rangesOf = {0, 1, 2};
    run.copies = std::move(copies);
    return run.listed(a).listed(b).out(DType::F64, {1}).run()[0][0];
  };
  EXPECT_EQ(sumOf({1, 1}), sumOf({}));
  EXPECT_EQ(sumOf({3, 3}), sumOf({}) / 3);
}

TEST(Reduce, SquaresRefuseCopiesWithoutACommonMultiple) {
  auto refusalOf = [](std::vector<int64_t> copies) {
    KernelRun run("sum_squares");
    run.rangesOf.assign(copies.size() + 1, 0);
    run.copies = std::move(copies);
    for (size_t i = 0; i < run.copies.size(); ++i)
      run.listed(constant(DType::F32, {9}, 0));
    return run.out(DType::F64, {1}).refusal();
  };
  constexpr int64_t kMany = (1 << 20) - 1;
  const char *reason =
      "the copies of gradients are not positive, or have no common multiple of at most 2^40";
  EXPECT_EQ(refusalOf({kMany, kMany - 2}), nullptr);
  EXPECT_STREQ(refusalOf({kMany, kMany - 2, kMany - 4}), reason);
  EXPECT_STREQ(refusalOf({0, 1}), reason);
}

TEST(Reduce, SumsOfSquaresRefuseRangesAndVectors) {
  KernelRun ranges("sum_squares");
  ranges.ranges = {range(0, 1)};
  ranges.listed(constant(DType::F64, {1}, 0)).out(DType::F64, {1});
  EXPECT_STREQ(ranges.refusal(), "a sum of squares has ranges");
  KernelRun vector("sum_squares");
  vector.listed(constant(DType::F64, {2}, 0)).out(DType::F64, {1});
  EXPECT_STREQ(vector.refusal(), "sum_squares takes f32, bf16 and f16, and sums as f64[1]");
}

TEST(Reduce, SquaresRefuseRangesOutsideOfTheShard) {
  KernelRun run("sum_squares");
  run.ranges = {range(0, 10)};
  run.listed(constant(DType::F32, {9}, 0)).out(DType::F64, {1});
  EXPECT_STREQ(run.refusal(), "a parameter's range is not inside its shard");
}

} // namespace
} // namespace shardc::kernels::test
