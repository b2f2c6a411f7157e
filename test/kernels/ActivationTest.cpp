// gelu and swiglu against formulas in double, their gradients against differences.
#include "test/kernels/Harness.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

double gelu(double x, bool tanhApprox) {
  if (!tanhApprox)
    return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

/// erf, tanh and exp in fp32 are good to an ulp or two of a number below 1, times x.
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

TEST(Activation, SwiGlu) {
  struct Shape {
    int64_t rows, cols;
  };
  for (Shape shape : {Shape{1, 1}, Shape{3, 5}, Shape{2, 700}})
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {shape.rows, 2 * shape.cols}, 3, 5.0);
      Array dy = randoms(dtype, {shape.rows, shape.cols}, 4);
      auto swiglu = [&](const std::vector<double> &at) {
        std::vector<double> y;
        for (int64_t row = 0; row < shape.rows; ++row)
          for (int64_t i = 0; i < shape.cols; ++i) {
            auto gate = static_cast<size_t>(row * 2 * shape.cols + i);
            y.push_back(silu(at[gate]) * at[gate + static_cast<size_t>(shape.cols)]);
          }
        return y;
      };
      KernelRun forward("swiglu"), backward("swiglu_bwd");
      expectClose(forward.in(x).out(dtype, dy.shape).run()[0], swiglu(x.values), {2e-6, 6}, "y");
      expectGradient(
          backward.in(dy).in(x).out(dtype, x.shape).run()[0], x.values,
          [&](const std::vector<double> &at) { return inner(dy.values, swiglu(at)); }, {4e-6, 6},
          "dx");
    }
}

TEST(Activation, SwiGluGradientGivesTheActivationAgain) {
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {3, 2 * 77}, 3, 5.0), dy = randoms(dtype, {3, 77}, 4);
    KernelRun forward("swiglu"), alone("swiglu_bwd"), both("swiglu_bwd");
    std::vector<Array> y = forward.in(x).out(dtype, dy.shape).run();
    std::vector<Array> dx = alone.in(dy).in(x).out(dtype, x.shape).run();
    std::vector<Array> got = both.in(dy).in(x).out(dtype, x.shape).out(dtype, dy.shape).run();
    EXPECT_EQ(got[0].values, dx[0].values);
    EXPECT_EQ(got[1].values, y[0].values);
  }
}

TEST(Activation, SwiGluSurvivesLargeGates) {
  Array x = array(DType::F32, {2, 2}, {-200, 3, 200, 3}), dy = constant(DType::F32, {2, 1}, 1);
  KernelRun forward("swiglu"), backward("swiglu_bwd");
  expectClose(forward.in(x).out(DType::F32, {2, 1}).run()[0], {0, 600}, {1e-6, 1}, "y");
  expectClose(backward.in(dy).in(x).out(DType::F32, {2, 2}).run()[0], {0, 0, 3, 200}, {1e-6, 1},
              "dx");
}

} // namespace
} // namespace shardc::kernels::test
