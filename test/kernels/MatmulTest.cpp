// Compares matmul with a triple loop in double: transposes, biases, types, accumulation, panels of
// rows.
#include "test/kernels/Harness.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Shape {
  int64_t m, n, k;
};

Array matrix(DType dtype, int64_t rows, int64_t cols, bool transposed, uint64_t seed) {
  return transposed ? randoms(dtype, {cols, rows}, seed) : randoms(dtype, {rows, cols}, seed);
}

std::vector<double> product(const Array &a, const Array &b, Shape shape, bool transA, bool transB) {
  std::vector<double> c;
  for (int64_t i = 0; i < shape.m; ++i)
    for (int64_t j = 0; j < shape.n; ++j) {
      double total = 0;
      for (int64_t l = 0; l < shape.k; ++l)
        total += a[transA ? l * shape.m + i : i * shape.k + l] *
                 b[transB ? j * shape.k + l : l * shape.n + j];
      c.push_back(total);
    }
  return c;
}

/// Tolerance for sums of k products below 1 in fp32.
Tolerance tolerance(int64_t k) { return {static_cast<double>(k) * 0x1p-24, 1}; }

constexpr Shape kShapes[] = {{1, 1, 1}, {3, 5, 7}, {1, 9, 4}, {33, 66, 129}};

TEST(Matmul, MultipliesInEveryOrientation) {
  for (Shape shape : kShapes)
    for (int trans = 0; trans < 4; ++trans)
      for (DType dtype : kDataTypes) {
        SCOPED_TRACE(testing::Message() << shape.m << 'x' << shape.n << 'x' << shape.k << " trans "
                                        << trans << ' ' << dtypeName(dtype));
        bool transA = trans & 1, transB = trans & 2;
        Array a = matrix(dtype, shape.m, shape.k, transA, 1);
        Array b = matrix(dtype, shape.k, shape.n, transB, 2);
        KernelRun run("matmul");
        run.attrs.trans_a = transA;
        run.attrs.trans_b = transB;
        run.in(a).in(b).out(dtype, {shape.m, shape.n});
        expectClose(run.run()[0], product(a, b, shape, transA, transB), tolerance(shape.k), "c");
      }
}

TEST(Matmul, MixesTypesAndAddsABias) {
  Shape shape = {6, 10, 12};
  for (DType typeA : kDataTypes)
    for (DType typeB : kDataTypes)
      for (DType typeC : kDataTypes) {
        Array a = randoms(typeA, {2, 3, 12}, 3), b = randoms(typeB, {10, 12}, 4);
        Array bias = randoms(typeB, {10}, 5);
        KernelRun run("matmul");
        run.attrs.trans_b = true;
        run.in(a).in(b).in(bias).out(typeC, {2, 3, 10});
        std::vector<double> want = product(a, b, shape, false, true);
        for (size_t i = 0; i < want.size(); ++i)
          want[i] += bias.values[i % 10];
        expectClose(run.run()[0], want, tolerance(13), "c");
      }
}

TEST(Matmul, FactorsAndProductHaveLeadingDimensions) {
  // A weight's gradient: dw = dyᵀ·x, summed over all rows of a batch.
  Shape shape = {4, 5, 6};
  Array dy = randoms(DType::BF16, {2, 3, 4}, 6), x = randoms(DType::BF16, {2, 3, 5}, 7);
  KernelRun run("matmul");
  run.attrs.trans_a = true;
  run.in(dy).in(x).out(DType::F32, {4, 5});
  expectClose(run.run()[0], product(dy, x, shape, true, false), tolerance(6), "dw");
}

TEST(Matmul, AddsExactly) {
  for (DType dtype : kDataTypes) {
    Array a = randoms(dtype, {700, 40}, 8), b = randoms(dtype, {700, 30}, 9);
    Array old = randoms(dtype, {40, 30}, 10, 5.0);
    KernelRun plain("matmul"), accumulating("matmul");
    plain.attrs.trans_a = accumulating.attrs.trans_a = true;
    plain.in(a).in(b).out(DType::F32, {40, 30});
    accumulating.in(a).in(b).accumulate(old);
    expectAccumulated(accumulating.run()[0], plain.run()[0], old);
  }
}

/// matmul_add adds a product to the operand in its place, with or without a bias.
TEST(Matmul, AddsToAnOperandInPlace) {
  for (DType dtype : kDataTypes)
    for (bool hasBias : {false, true}) {
      Array a = randoms(dtype, {2, 3, 12}, 8), b = randoms(dtype, {10, 12}, 9);
      Array more = randoms(dtype, {2, 3, 10}, 10, 5.0), bias = randoms(dtype, {10}, 11);
      KernelRun plain("matmul"), adding("matmul_add");
      plain.attrs.trans_b = adding.attrs.trans_b = true;
      plain.in(a).in(b), adding.in(a).in(b).in(more);
      if (hasBias)
        plain.in(bias), adding.in(bias);
      plain.out(DType::F32, {2, 3, 10}), adding.inPlace(2);
      expectAccumulated(adding.run()[0], plain.run()[0], more);
    }
  KernelRun apart("matmul_add");
  apart.in(constant(DType::F32, {2, 3}, 0)).in(constant(DType::F32, {3, 4}, 0));
  apart.in(constant(DType::F32, {2, 4}, 0)).out(DType::F32, {2, 4});
  EXPECT_STREQ(apart.refusal(), "a result does not have type, shape and buffer of its operand");
}

TEST(Matmul, PanelsOfRowsFitTogether) {
  // More than one panel: a panel of 2^22 elements has 128 rows of 2^15.
  int64_t n = 1 << 15;
  Array b = randoms(DType::F32, {2, n}, 12);
  for (bool transA : {false, true}) {
    Array a = matrix(DType::F32, 131, 2, transA, 11);
    KernelRun run("matmul");
    run.attrs.trans_a = transA;
    run.in(a).in(b).accumulate(constant(DType::BF16, {131, n}, 0.0));
    expectClose(run.run()[0], product(a, b, {131, n, 2}, transA, false), tolerance(2), "c");
  }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  auto refusal = [](std::vector<int64_t> a, std::vector<int64_t> b, std::vector<int64_t> c,
                    bool transB) {
    KernelRun run("matmul");
    run.attrs.trans_b = transB;
    run.in(constant(DType::F32, a, 0)).in(constant(DType::F32, b, 0)).out(DType::F32, c);
    return run.refusal();
  };
  EXPECT_EQ(refusal({2, 3}, {3, 4}, {2, 4}, false), nullptr);
  EXPECT_STREQ(refusal({2, 3}, {4, 4}, {2, 4}, false),
               "extents of operands and results do not fit each other");
  EXPECT_STREQ(refusal({2, 3}, {3, 4}, {2, 4}, true),
               "extents of operands and results do not fit each other");
  EXPECT_STREQ(refusal({2, 3}, {3, 4}, {4, 2}, false),
               "extents of operands and results do not fit each other");
  EXPECT_STREQ(refusal({3}, {3, 4}, {1, 4}, false),
               "an operand or result has fewer dimensions than the op's row");
}

/// gelu with the tanh approximation, in double.
double geluOf(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

TEST(Matmul, EndsInGelu) {
  for (Shape shape : kShapes)
    for (DType dtype : kDataTypes)
      for (bool hasBias : {false, true}) {
        Array a = matrix(dtype, shape.m, shape.k, false, 1);
        Array b = matrix(dtype, shape.k, shape.n, true, 2), bias = randoms(dtype, {shape.n}, 3);
        KernelRun run("matmul_gelu");
        run.attrs.trans_b = run.attrs.tanh_approx = true;
        run.in(a).in(b);
        if (hasBias)
          run.in(bias);
        run.out(dtype, {shape.m, shape.n}).out(dtype, {shape.m, shape.n});
        std::vector<Array> got = run.run();
        std::vector<double> x = product(a, b, shape, false, true), y;
        for (size_t i = 0; i < x.size(); ++i) {
          x[i] += hasBias ? bias.values[i % static_cast<size_t>(shape.n)] : 0;
          y.push_back(geluOf(x[i]));
        }
        expectClose(got[1], x, tolerance(shape.k + 1), "x");
        expectClose(got[0], y, {2 * tolerance(shape.k + 2).abs, 2}, "y");
      }
}

TEST(Matmul, EndsInTheGradientOfGelu) {
  for (Shape shape : kShapes)
    for (DType dtype : kDataTypes) {
      Array dy = matrix(dtype, shape.m, shape.k, false, 4);
      Array b = matrix(dtype, shape.k, shape.n, false, 5);
      Array x = randoms(dtype, {shape.m, shape.n}, 6, 3.0);
      KernelRun run("matmul_gelu_bwd");
      run.attrs.tanh_approx = true;
      Array got = run.in(dy).in(b).in(x).out(dtype, {shape.m, shape.n}).run()[0];
      std::vector<double> want = product(dy, b, shape, false, false);
      for (size_t i = 0; i < want.size(); ++i)
        want[i] *= numericPartial({x.values[i]}, 0,
                                  [](const std::vector<double> &at) { return geluOf(at[0]); });
      expectClose(got, want, {4 * tolerance(shape.k + 4).abs, 4}, "dx");
    }
}

} // namespace
} // namespace shardc::kernels::test
