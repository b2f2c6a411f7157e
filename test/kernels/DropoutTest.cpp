// Dropout depends only on (seed, salt, sample, position, channel).
#include "test/kernels/Harness.h"

#include "runtime/base/Philox.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

Attrs attrsOf(double p, int64_t salt, int64_t seed) {
  Attrs attrs;
  attrs.p = p;
  attrs.salt = salt;
  attrs.seed = seed;
  return attrs;
}

/// The random bits of an element, by the rule in docs/adding-a-kernel.md and Dropout.h.
uint32_t bitsOf(const Attrs &attrs, int64_t sample, int64_t position, int64_t channel) {
  auto low = [](int64_t x) { return static_cast<uint32_t>(x); };
  auto high = [](int64_t x) { return static_cast<uint32_t>(static_cast<uint64_t>(x) >> 32); };
  PhiloxBlock mixed = philox4x32({low(attrs.salt), high(attrs.salt), 0, 0},
                                 streamKey(static_cast<uint64_t>(attrs.seed), "dropout"));
  uint64_t key = static_cast<uint64_t>(mixed[1]) << 32 | mixed[0];
  PhiloxBlock block = philox4x32({low(sample), high(sample), low(position), low(channel / 4)}, key);
  return block[static_cast<size_t>(channel % 4)];
}

bool isCleared(const Attrs &attrs, int64_t sample, int64_t position, int64_t channel) {
  return bitsOf(attrs, sample, position, channel) < std::round(attrs.p * 4294967296.0);
}

Array drop(const Attrs &attrs, const Array &x, const Array &samples) {
  KernelRun run("dropout");
  run.attrs = attrs;
  return run.in(x).in(samples).out(x.dtype, x.shape).run()[0];
}

TEST(Dropout, FollowsTheRule) {
  Attrs attrs = attrsOf(0.25, (int64_t{5} << 32) + 3, 42);
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {2, 3, 518}, 1), samples = array(DType::I64, {2}, {9, 8589934599.0});
    Array y = drop(attrs, x, samples);
    for (int64_t i = 0; i < x.numel(); ++i) {
      int64_t row = i / 518;
      bool cleared = isCleared(attrs, static_cast<int64_t>(samples[row / 3]), row % 3, i % 518);
      double scaled = static_cast<double>(static_cast<float>(x[i]) * static_cast<float>(1 / 0.75));
      ASSERT_EQ(y[i], cleared ? 0 : roundTo(dtype, scaled)) << i;
    }
  }
}

/// The rows of a member may begin inside a sample.
TEST(Dropout, OfAMembersRowsIsThatOfTheWhole) {
  Attrs attrs = attrsOf(0.25, 4, 42);
  for (int64_t members : {2, 3, 6})
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {2, 9, 21}, 1), samples = array(DType::I64, {2}, {9, 8589934599.0});
      std::vector<double> want = drop(attrs, x, samples).values, got;
      int64_t part = x.numel() / members;
      for (int64_t index = 0; index < members; ++index) {
        KernelRun run("dropout");
        run.attrs = attrs;
        run.index = index, run.groupSize = members;
        auto begin = x.values.begin() + index * part;
        run.in(array(dtype, {18 / members, 21}, {begin, begin + part})).in(samples);
        std::vector<double> rows = run.out(dtype, {18 / members, 21}).run()[0].values;
        got.insert(got.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(got, want) << members;
    }
}

TEST(Dropout, RowsOfAllMembersAreThoseOfTheSamples) {
  KernelRun run("dropout");
  run.groupSize = 2;
  run.in(constant(DType::F32, {2, 4}, 1)).in(constant(DType::I64, {3}, 0));
  EXPECT_STREQ(run.out(DType::F32, {2, 4}).refusal(),
               "extents of operands and results do not fit each other");
}

TEST(Dropout, ClearsTheShareThatIsAsked) {
  Array x = constant(DType::F32, {1, 64, 512}, 1), samples = constant(DType::I64, {1}, 0);
  for (double p : {0.0, 0.1, 0.5, 0.9}) {
    double cleared = 0, total = 0;
    for (double value : drop(attrsOf(p, 1, 2), x, samples).values) {
      cleared += value == 0;
      total += value;
    }
    double n = static_cast<double>(x.numel());
    EXPECT_NEAR(cleared / n, p, 5 * std::sqrt(p * (1 - p) / n));
    EXPECT_NEAR(total / n, 1, 5 * std::sqrt(p / (1 - p) / n) + 1e-6);
  }
}

TEST(Dropout, OpsAndSeedsAndSamplesDiffer) {
  Array x = constant(DType::F32, {1, 4, 64}, 1), zero = constant(DType::I64, {1}, 0);
  std::vector<double> base = drop(attrsOf(0.5, 0, 0), x, zero).values;
  EXPECT_NE(drop(attrsOf(0.5, 1, 0), x, zero).values, base);
  EXPECT_NE(drop(attrsOf(0.5, 0, 1), x, zero).values, base);
  EXPECT_NE(drop(attrsOf(0.5, 0, 0), x, constant(DType::I64, {1}, 1)).values, base);
}

TEST(Dropout, ClearedIsZeroEvenOfInfinity) {
  Array x = constant(DType::F32, {1, 1, 64}, 1);
  for (double &value : x.values)
    value = INFINITY;
  for (double value : drop(attrsOf(0.5, 0, 0), x, constant(DType::I64, {1}, 0)).values)
    EXPECT_TRUE(value == 0 || std::isinf(value));
}

/// Like torch.nn.functional.dropout in training with p = 1: zeros.
TEST(Dropout, ClearsEverythingAtOne) {
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {2, 3, 518}, 1), samples = constant(DType::I64, {2}, 9);
    x.values[5] = INFINITY;
    for (double value : drop(attrsOf(1, 3, 42), x, samples).values)
      EXPECT_EQ(value, 0);
  }
}

TEST(Dropout, JitterMultipliesByUniformNumbers) {
  for (double jitter : {0.01, 0.5, 3.0}) {
    Attrs attrs = attrsOf(0, 7, 42);
    attrs.jitter = jitter;
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {2, 3, 518}, 1), samples = array(DType::I64, {2}, {9, 8589934599.0});
      Array y = drop(attrs, x, samples);
      double total = 0, squares = 0, n = static_cast<double>(x.numel());
      for (int64_t i = 0; i < x.numel(); ++i) {
        int64_t row = i / 518;
        uint32_t bits = bitsOf(attrs, static_cast<int64_t>(samples[row / 3]), row % 3, i % 518);
        double u = static_cast<double>(bits) / 4294967296.0, factor = 1 + jitter * (2 * u - 1);
        double unit = dtype == DType::F32 ? 0x1p-22 : dtype == DType::BF16 ? 0x1p-7 : 0x1p-9;
        ASSERT_NEAR(y[i], x[i] * factor, (std::fabs(x[i]) * (1 + jitter) + 1e-7) * unit) << i;
        total += u, squares += u * u;
      }
      EXPECT_NEAR(total / n, 0.5, 5 * std::sqrt(1 / 12.0 / n));
      EXPECT_NEAR(squares / n, 1 / 3.0, 5 * std::sqrt(4 / 45.0 / n));
    }
  }
}

TEST(Dropout, RefusesJitterThatIsNegativeOrBesideAProbability) {
  for (auto [p, jitter, reason] : {std::tuple(0.0, -0.1, "the jitter is not 0 or more"),
                                   std::tuple(0.0, double{INFINITY}, "the jitter is not 0 or more"),
                                   std::tuple(0.0, double{NAN}, "the jitter is not 0 or more"),
                                   std::tuple(0.1, 0.1, "dropout has a probability and jitter")}) {
    KernelRun run("dropout");
    run.attrs.p = p, run.attrs.jitter = jitter;
    run.in(constant(DType::F32, {1, 1, 1}, 0)).in(constant(DType::I64, {1}, 0));
    EXPECT_STREQ(run.out(DType::F32, {1, 1, 1}).refusal(), reason);
  }
}

TEST(Dropout, RefusesProbabilitiesOutsideOfZeroToOne) {
  for (double p : {-0.1, 1.0000001, double{NAN}}) {
    KernelRun run("dropout");
    run.attrs.p = p;
    run.in(constant(DType::F32, {1, 1, 1}, 0)).in(constant(DType::I64, {1}, 0));
    EXPECT_STREQ(run.out(DType::F32, {1, 1, 1}).refusal(),
                 "the dropout probability is not in [0, 1]");
  }
}

} // namespace
} // namespace shardc::kernels::test
