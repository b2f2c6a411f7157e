// Compares gelu, squared_relu, swiglu, geglu and quick_geglu with formulas in double, and their
// gradients with differences.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

double gelu(double x, bool tanhApprox) {
  if (!tanhApprox)
    return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

/// In fp32, erf, tanh and exp are accurate to one or two ulps of a number below 1, times x.
constexpr Tolerance kTolerance = {2e-6, 4};

constexpr int64_t kSizes[] = {1, 7, 513, 1500};

TEST(Activation, Gelu) {
  for (int64_t size : kSizes)
    for (DType dtype : kDataTypes)
      for (bool tanhApprox : {false, true}) {
        Array x = randoms(dtype, {size}, 1, 6.0), dy = randoms(dtype, {size}, 2);
        KernelRun forward("gelu"), backward("gelu_bwd");
        forward.attrs.tanh_approx = backward.attrs.tanh_approx = tanhApprox;
        std::vector<double> y, dx;
        for (size_t i = 0; i < x.values.size(); ++i) {
          auto f = [&](const std::vector<double> &at) { return gelu(at[0], tanhApprox); };
          y.push_back(gelu(x.values[i], tanhApprox));
          dx.push_back(dy.values[i] * numericPartial({x.values[i]}, 0, f));
        }
        expectClose(forward.in(x).out(dtype, x.shape).run()[0], y, kTolerance, "y");
        expectClose(backward.in(dy).in(x).out(dtype, x.shape).run()[0], dx, kTolerance, "dx");
      }
}

TEST(Activation, GeluIsFlatFarOut) {
  Array x = array(DType::F32, {4}, {-100, -20, 20, 100});
  Array dy = constant(DType::F32, {4}, 1);
  for (bool tanhApprox : {false, true}) {
    KernelRun forward("gelu"), backward("gelu_bwd");
    forward.attrs.tanh_approx = backward.attrs.tanh_approx = tanhApprox;
    expectClose(forward.in(x).out(DType::F32, {4}).run()[0], {0, 0, 20, 100}, {1e-6, 0}, "y");
    expectClose(backward.in(dy).in(x).out(DType::F32, {4}).run()[0], {0, 0, 1, 1}, {1e-6, 0}, "dx");
  }
}

TEST(Activation, SquaredRelu) {
  for (int64_t size : kSizes)
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {size}, 1, 6.0), dy = randoms(dtype, {size}, 2);
      KernelRun forward("squared_relu"), backward("squared_relu_bwd");
      std::vector<double> y, dx;
      for (size_t i = 0; i < x.values.size(); ++i) {
        double positive = std::max(x.values[i], 0.0);
        y.push_back(positive * positive);
        dx.push_back(dy.values[i] * 2 * positive); // dx has a jump, so no differences
      }
      // A square, and a product of two factors; each is rounded once.
      expectClose(forward.in(x).out(dtype, x.shape).run()[0], y, {0, 1}, "y");
      expectClose(backward.in(dy).in(x).out(dtype, x.shape).run()[0], dx, {0, 1}, "dx");
    }
}

TEST(Activation, SquaredReluHidesNoNan) {
  double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  Array x = array(DType::F32, {4}, {nan, -inf, inf, 0}), dy = constant(DType::F32, {4}, 1);
  KernelRun forward("squared_relu"), backward("squared_relu_bwd");
  Array y = forward.in(x).out(DType::F32, {4}).run()[0];
  Array dx = backward.in(dy).in(x).out(DType::F32, {4}).run()[0];
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(dx[0]));
  EXPECT_EQ((std::vector<double>{y[1], y[2], y[3]}), (std::vector<double>{0, inf, 0}));
  EXPECT_EQ((std::vector<double>{dx[1], dx[2], dx[3]}), (std::vector<double>{0, inf, 0}));
}

/// With and without the clamp, with an offset: values and slopes on both sides of each kink.
TEST(Activation, QuickGeGlu) {
  for (double clamp : {0.0, 2.1})
    for (DType dtype : kDataTypes) {
      constexpr int64_t kRows = 3, kCols = 171;
      Array x = randoms(dtype, {kRows, 2 * kCols}, 3, 4.0), dy = randoms(dtype, {kRows, kCols}, 4);
      KernelRun forward("quick_geglu"), backward("quick_geglu_bwd");
      forward.attrs.clamp = backward.attrs.clamp = clamp;
      forward.attrs.linear_offset = backward.attrs.linear_offset = 1.25;
      std::vector<double> y, dx(x.values.size());
      for (int64_t i = 0; i < kRows * kCols; ++i) {
        auto gate = static_cast<size_t>(i / kCols * 2 * kCols + i % kCols);
        size_t up = gate + static_cast<size_t>(kCols);
        auto f = [&](const std::vector<double> &at) {
          double g = clamp > 0 ? std::min(at[0], clamp) : at[0];
          double u = clamp > 0 ? std::clamp(at[1], -clamp, clamp) : at[1];
          return g / (1 + std::exp(-1.702 * g)) * (u + 1.25);
        };
        std::vector<double> at = {x.values[gate], x.values[up]};
        y.push_back(f(at));
        dx[gate] = dy[i] * numericPartial(at, 0, f, 1e-6);
        dx[up] = dy[i] * numericPartial(at, 1, f, 1e-6);
      }
      expectClose(forward.in(x).out(dtype, dy.shape).run()[0], y, {4e-6, 6}, "y");
      expectClose(backward.in(dy).in(x).out(dtype, x.shape).run()[0], dx, {2e-5, 6}, "dx");
    }
}

TEST(Activation, QuickGeGluHidesNoNan) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  KernelRun run("quick_geglu");
  run.attrs.clamp = 1;
  Array y = run.in(array(DType::F32, {2, 2}, {nan, 1, 1, nan})).out(DType::F32, {2, 1}).run()[0];
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
}

/// A gated activation's op, and the function of its gate.
struct Gated {
  std::string op;
  bool tanhApprox;
  double (*activate)(double);
};

const Gated kGated[] = {{"swiglu", false, silu},
                        {"geglu", false, [](double x) { return gelu(x, false); }},
                        {"geglu", true, [](double x) { return gelu(x, true); }}};

KernelRun runOf(const Gated &gated, const char *suffix = "") {
  KernelRun run(gated.op + suffix);
  run.attrs.tanh_approx = gated.tanhApprox;
  return run;
}

struct GatedShape {
  int64_t rows, cols;
};

std::string nameOf(const Gated &gated) { return gated.op + (gated.tanhApprox ? "_tanh" : ""); }

void PrintTo(const Gated &gated, std::ostream *out) { *out << nameOf(gated); }

class GatedActivation : public testing::TestWithParam<Gated> {};
INSTANTIATE_TEST_SUITE_P(Kernels, GatedActivation, testing::ValuesIn(kGated),
                         [](const testing::TestParamInfo<Gated> &info) {
                           return nameOf(info.param);
                         });

TEST_P(GatedActivation, AgreesWithItsFormula) {
  const Gated &gated = GetParam();
  for (GatedShape shape : {GatedShape{1, 1}, GatedShape{3, 5}, GatedShape{2, 700}})
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {shape.rows, 2 * shape.cols}, 3, 5.0);
      Array dy = randoms(dtype, {shape.rows, shape.cols}, 4);
      auto function = [&](const std::vector<double> &at) {
        std::vector<double> y;
        for (int64_t row = 0; row < shape.rows; ++row)
          for (int64_t i = 0; i < shape.cols; ++i) {
            auto gate = static_cast<size_t>(row * 2 * shape.cols + i);
            y.push_back(gated.activate(at[gate]) * at[gate + static_cast<size_t>(shape.cols)]);
          }
        return y;
      };
      KernelRun forward = runOf(gated), backward = runOf(gated, "_bwd");
      // For products of two functions up to 5, each accurate to some ulps.
      expectClose(forward.in(x).out(dtype, dy.shape).run()[0], function(x.values), {4e-6, 6}, "y");
      expectGradient(
          backward.in(dy).in(x).out(dtype, x.shape).run()[0], x.values,
          [&](const std::vector<double> &at) { return inner(dy.values, function(at)); }, {8e-6, 6},
          "dx");
    }
}

TEST_P(GatedActivation, GradientGivesTheActivationAgain) {
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {3, 2 * 77}, 3, 5.0), dy = randoms(dtype, {3, 77}, 4);
    KernelRun forward = runOf(GetParam()), alone = runOf(GetParam(), "_bwd"), both = alone;
    std::vector<Array> y = forward.in(x).out(dtype, dy.shape).run();
    std::vector<Array> dx = alone.in(dy).in(x).out(dtype, x.shape).run();
    std::vector<Array> got = both.in(dy).in(x).out(dtype, x.shape).out(dtype, dy.shape).run();
    EXPECT_EQ(got[0].values, dx[0].values);
    EXPECT_EQ(got[1].values, y[0].values);
  }
}

TEST_P(GatedActivation, SurvivesLargeGates) {
  Array x = array(DType::F32, {2, 2}, {-200, 3, 200, 3}), dy = constant(DType::F32, {2, 1}, 1);
  KernelRun forward = runOf(GetParam()), backward = runOf(GetParam(), "_bwd");
  expectClose(forward.in(x).out(DType::F32, {2, 1}).run()[0], {0, 600}, {1e-6, 1}, "y");
  expectClose(backward.in(dy).in(x).out(DType::F32, {2, 2}).run()[0], {0, 0, 3, 200}, {1e-6, 1},
              "dx");
}

} // namespace
} // namespace shardc::kernels::test
