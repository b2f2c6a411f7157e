// 8-bit numbers where golden values are missing: values that are not finite, ends of ranges,
// accumulation, and refused calls.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Array> quantized(std::vector<double> x, double amax, DType type) {
  KernelRun run("quantize");
  auto count = static_cast<int64_t>(x.size());
  run.in(array(DType::F32, {1, count}, std::move(x))).in(array(DType::F32, {1}, {amax}));
  run.out(type, {1, count}).out(DType::F32, {1});
  return run.run();
}

TEST(Quantize, SaturatesBeyondTheAmax) {
  std::vector<Array> got = quantized({1, 2, -3, 0, -0.0}, 1, DType::F8E4M3);
  EXPECT_EQ(got[0].values, (std::vector<double>{448, 448, -448, 0, -0.0}));
  EXPECT_EQ(got[1][0], static_cast<double>(1 / 448.0f));
  EXPECT_EQ(quantized({1, 2, -kInfinity}, 1, DType::F8E5M2)[0].values,
            (std::vector<double>{57344, 57344, -57344}));
}

TEST(Quantize, OfNothingHasAScaleOfOne) {
  std::vector<Array> got = quantized({0, 0}, 0, DType::F8E4M3);
  EXPECT_EQ(got[0].values, (std::vector<double>{0, 0}));
  EXPECT_EQ(got[1][0], 1);
}

TEST(Quantize, OfVerySmallNumbersHasAFiniteScale) {
  float least = std::numeric_limits<float>::denorm_min();
  std::vector<Array> got = quantized({least}, least, DType::F8E5M2);
  EXPECT_GT(got[1][0], 0);
  EXPECT_TRUE(std::isfinite(got[0][0]));
}

TEST(Quantize, KeepsWhatIsNotFiniteSo) {
  for (double amax : {kInfinity, kNan})
    for (DType type : {DType::F8E4M3, DType::F8E5M2}) {
      std::vector<Array> got = quantized({1, 0}, amax, type);
      EXPECT_TRUE(std::isnan(got[0][0]) && std::isnan(got[0][1]) && std::isnan(got[1][0]));
    }
  EXPECT_TRUE(std::isnan(quantized({kNan, 1}, 1, DType::F8E5M2)[0][0]));
}

/// q, the scale and the updated `seen` of x; the expected magnitude is in slot 1 of three.
std::vector<Array> quantizedDelayed(std::vector<double> x, double amax, double seen) {
  KernelRun run("quantize_delayed");
  run.attrs.slot = 1;
  auto count = static_cast<int64_t>(x.size());
  run.in(array(DType::F32, {1, count}, std::move(x))).in(array(DType::F32, {3}, {7, amax, 7}));
  run.in(array(DType::F32, {3}, {5, seen, 5})).out(DType::F8E4M3, {1, count}).out(DType::F32, {1});
  run.inPlace(2);
  return run.run();
}

TEST(QuantizeDelayed, SeesTheLargestMagnitudeInItsSlot) {
  std::vector<Array> got = quantizedDelayed({1, -3, 0.5}, 2, 1);
  EXPECT_EQ(got[0].values, (std::vector<double>{224, -448, 112}));
  EXPECT_EQ(got[1][0], static_cast<double>(1 / 224.0f));
  EXPECT_EQ(got[2].values, (std::vector<double>{5, 3, 5}));
  EXPECT_EQ(quantizedDelayed({1, -3, 0.5}, 2, 4)[2].values, (std::vector<double>{5, 4, 5}));
}

TEST(QuantizeDelayed, BeginsWithAScaleOfOne) {
  std::vector<Array> got = quantizedDelayed({1, -3, 500}, 0, 0);
  EXPECT_EQ(got[0].values, (std::vector<double>{1, -3, 448}));
  EXPECT_EQ(got[1][0], 1);
}

TEST(QuantizeDelayed, KeepsWhatIsNotFiniteSo) {
  for (double special : {kInfinity, -kInfinity, kNan}) {
    std::vector<Array> got = quantizedDelayed({1, special}, 2, 1);
    EXPECT_EQ(got[0][0], 224);
    EXPECT_TRUE(std::isnan(got[0][1]));
    EXPECT_FALSE(std::isfinite(got[2][1]));
  }
  EXPECT_TRUE(std::isnan(quantizedDelayed({1, 2}, 2, kNan)[2][1]));
}

/// The results of `amax.update` on a history and the amaxes seen in a step.
std::vector<Array> updated(const Array &history, std::vector<double> seen, StepState state,
                           const Attrs &attrs) {
  KernelRun run("amax.update");
  run.attrs = attrs;
  int64_t n = history.shape[1];
  run.in(history).in(array(DType::F32, {n}, std::move(seen))).in(stateArray(state));
  run.inPlace(0).inPlace(1).out(DType::F32, {n});
  return run.run();
}

TEST(AmaxUpdate, ScalesAreThoseOfTransformerEngine) {
  std::ifstream golden(SHARDC_DELAYED_SCALES);
  std::string word;
  int cases = 0;
  for (; golden >> word; ++cases) {
    ASSERT_EQ(word, "delayed");
    int64_t length = 0;
    float largest = 0;
    Attrs attrs;
    golden >> length >> attrs.most_recent >> attrs.margin >> largest;
    auto numbers = [&] {
      std::vector<double> found;
      for (size_t i = 0; i < 40 && golden >> word; ++i)
        found.push_back(std::stod(word));
      return found;
    };
    std::vector<double> seen = numbers(), scales = numbers();
    ASSERT_EQ(scales.size(), 40u);
    Array history = array(DType::F32, {length, 1}, std::vector<double>(length));
    for (size_t step = 0; step < scales.size(); ++step) {
      std::vector<Array> got = updated(history, {seen[step]}, {}, attrs);
      history = got[0];
      EXPECT_EQ(got[1][0], 0);
      EXPECT_EQ(got[2][0], history[0]);
      auto expected = static_cast<float>(got[2][0]);
      float scale = expected == 0 ? 1 : std::min(largest / expected, FLT_MAX);
      EXPECT_EQ(scale, static_cast<float>(scales[step])) << "case " << cases << " step " << step;
    }
  }
  EXPECT_EQ(cases, 5);
}

TEST(AmaxUpdate, OfAStepThatIsNotFiniteOnlyClears) {
  Array history = array(DType::F32, {3, 2}, {1, 2, 3, 4, 5, 6});
  StepState state{};
  state.nonfinite = 1;
  std::vector<Array> got = updated(history, {9, kNan}, state, {});
  EXPECT_EQ(got[0].values, history.values);
  EXPECT_EQ(got[1].values, (std::vector<double>{0, 0}));
  EXPECT_EQ(got[2].values, (std::vector<double>{1, 2}));
}

TEST(AmaxUpdate, ChangesWhatIsExpectedInEachInterval) {
  Array history = array(DType::F32, {2, 1}, {1, 2});
  for (int64_t step : {3, 4}) {
    StepState state{};
    state.step = step;
    Attrs attrs;
    attrs.interval = 2;
    std::vector<Array> got = updated(history, {9}, state, attrs);
    EXPECT_EQ(got[0].values, (std::vector<double>{step == 4 ? 9.0 : 1.0, 9}));
  }
}

/// Two parameters with padding between them; the second one's magnitude is the first in the array.
std::vector<ParamRange> twoParameters() {
  ParamRange first, second;
  first.end = 3, first.number = 1;
  second.begin = 4, second.end = 6;
  return {first, second};
}

TEST(AmaxShard, FindsThatOfEachParameter) {
  KernelRun run("amax_shard");
  run.ranges = twoParameters();
  run.in(array(DType::F32, {6}, {1, -3, 2, 99, 4, -0.5})).in(array(DType::F32, {3}, {1, 2, 7}));
  EXPECT_EQ(run.inPlace(1).run()[0].values, (std::vector<double>{4, 3, 7}));
}

TEST(QuantizeShard, GivesEachParameterItsScale) {
  KernelRun run("quantize_shard");
  run.ranges = twoParameters();
  run.in(array(DType::F32, {6}, {1, -3, 2, 0, 4, -0.5})).in(array(DType::F32, {2}, {4, 3.5}));
  std::vector<double> got = run.over(constant(DType::F8E4M3, {6}, 5)).run()[0].values;
  EXPECT_EQ(got, (std::vector<double>{128, -384, 256, 5, 448, -56}));
}

TEST(WeightScales, AreThoseOfQuantize) {
  KernelRun run("weight_scales");
  run.in(array(DType::F32, {2}, {3, 0})).out(DType::F32, {2, 4});
  double first = quantized({3}, 3, DType::F8E4M3)[1][0];
  EXPECT_EQ(run.run()[0].values, (std::vector<double>{first, first, first, first, 1, 1, 1, 1}));
}

TEST(Amax, SeesInfinityAndNan) {
  auto amaxOf = [](std::vector<double> x) {
    KernelRun run("amax");
    auto count = static_cast<int64_t>(x.size());
    run.in(array(DType::BF16, {count}, std::move(x))).out(DType::F32, {1});
    return run.run()[0][0];
  };
  EXPECT_EQ(amaxOf({1, -2.5, 0.5}), 2.5);
  EXPECT_EQ(amaxOf({1, -kInfinity}), kInfinity);
  EXPECT_TRUE(std::isnan(amaxOf({1, kNan, kInfinity})));
}

TEST(MatMulScaled, AddsExactly) {
  Array a = randoms(DType::F8E5M2, {40, 70}, 1), b = randoms(DType::F8E4M3, {30, 70}, 2);
  Array scale = array(DType::F32, {1}, {0.37}), old = randoms(DType::F32, {40, 30}, 3, 5);
  KernelRun plain("matmul_scaled"), accumulating("matmul_scaled");
  plain.in(a).in(b).in(scale).in(scale).out(DType::F32, {40, 30});
  accumulating.in(a).in(b).in(scale).in(scale).accumulate(old);
  expectAccumulated(accumulating.run()[0], plain.run()[0], old);
}

TEST(MatMulScaled, PanelsOfRowsFitTogether) {
  // More than one panel: a panel of 2^22 elements has 128 rows of 2^15.
  int64_t n = 1 << 15;
  Array a = randoms(DType::F8E4M3, {131, 2}, 4), b = randoms(DType::F8E4M3, {n, 2}, 5);
  Array scale = array(DType::F32, {1}, {2});
  KernelRun run("matmul_scaled");
  run.in(a).in(b).in(scale).in(scale).out(DType::F32, {131, n});
  std::vector<double> want;
  for (int64_t i = 0; i < 131; ++i)
    for (int64_t j = 0; j < n; ++j)
      want.push_back(4 * (a[2 * i] * b[2 * j] + a[2 * i + 1] * b[2 * j + 1]));
  expectClose(run.run()[0], want, {2 * 0x1p-24, 1}, "c");
}

TEST(MatMulScaled, RefusesWhatDoesNotFit) {
  auto refusal = [](DType a, DType b, std::vector<int64_t> scale, std::vector<int64_t> c) {
    KernelRun run("matmul_scaled");
    run.in(constant(a, {2, 3}, 0)).in(constant(b, {4, 3}, 0));
    run.in(constant(DType::F32, scale, 1)).in(constant(DType::F32, {1}, 1)).out(DType::F32, c);
    return run.refusal();
  };
  EXPECT_EQ(refusal(DType::F8E5M2, DType::F8E4M3, {1}, {2, 4}), nullptr);
  EXPECT_STREQ(refusal(DType::F8E5M2, DType::F8E5M2, {1}, {2, 4}),
               "both operands are f8e5m2, which no device multiplies");
  EXPECT_STREQ(refusal(DType::BF16, DType::F8E4M3, {1}, {2, 4}),
               "an operand or result does not have the type of the op's row");
  EXPECT_STREQ(refusal(DType::F8E4M3, DType::F8E4M3, {2}, {2, 4}),
               "the scales are neither one f32 each nor those of blocks");
  EXPECT_STREQ(refusal(DType::F8E4M3, DType::F8E4M3, {1}, {4, 2}),
               "extents of operands and results do not fit each other");
}

} // namespace
} // namespace shardc::kernels::test
