// Compares both norms with formulas in double, and their gradients with differences of these
// formulas.
#include "test/kernels/Harness.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr double kEps = 1e-5;

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 5}, {7, 33}, {16, 256}};

/// y of a norm; also returns the statistics in `mean` and `rstd` unless null.
std::vector<double> norm(bool centered, const std::vector<double> &x, const std::vector<double> &w,
                         const std::vector<double> &bias, double plus,
                         std::vector<double> *mean = nullptr, std::vector<double> *rstd = nullptr) {
  std::vector<double> y(x.size());
  size_t n = w.size();
  for (size_t row = 0; row < x.size() / n; ++row) {
    double middle = 0, square = 0;
    for (size_t i = 0; i < n; ++i)
      middle += centered ? x[row * n + i] / static_cast<double>(n) : 0;
    for (size_t i = 0; i < n; ++i)
      square += std::pow(x[row * n + i] - middle, 2) / static_cast<double>(n);
    double scale = 1 / std::sqrt(square + kEps);
    for (size_t i = 0; i < n; ++i)
      y[row * n + i] = (x[row * n + i] - middle) * scale * (w[i] + plus) + (centered ? bias[i] : 0);
    if (mean)
      mean->push_back(middle);
    if (rstd)
      rstd->push_back(scale);
  }
  return y;
}

/// Statistics have the rounding of a sum, data one rounding more.
constexpr Tolerance kForward = {1e-6, 4};
/// A gradient is a difference of terms of its own magnitude.
constexpr Tolerance kBackward = {4e-6, 8};

void checkForward(bool centered, Shape shape, DType dtype, bool zeroCentered) {
  Array x = randoms(dtype, {shape.rows, shape.cols}, 1, 3.0), w = randoms(dtype, {shape.cols}, 2);
  Array bias = randoms(dtype, {shape.cols}, 3);
  KernelRun run(centered ? "layernorm" : "rmsnorm");
  run.attrs.eps = kEps;
  run.attrs.zero_centered = zeroCentered;
  run.in(x).in(w);
  if (centered)
    run.in(bias);
  run.out(dtype, x.shape);
  if (centered)
    run.out(DType::F32, {shape.rows});
  run.out(DType::F32, {shape.rows});
  std::vector<double> mean, rstd;
  std::vector<double> y =
      norm(centered, x.values, w.values, bias.values, zeroCentered ? 1 : 0, &mean, &rstd);
  std::vector<Array> got = run.run();
  expectClose(got[0], y, kForward, "y");
  if (centered)
    expectClose(got[1], mean, kForward, "mean");
  expectClose(got.back(), rstd, kForward, "rstd");
}

TEST(Norm, Normalises) {
  for (Shape shape : kShapes)
    for (DType dtype : kDataTypes)
      for (bool zeroCentered : {false, true})
        for (bool centered : {false, true}) {
          SCOPED_TRACE(testing::Message() << shape.rows << 'x' << shape.cols << ' '
                                          << dtypeName(dtype) << zeroCentered << centered);
          checkForward(centered, shape, dtype, zeroCentered);
        }
}

TEST(Norm, FusedWithAnAddGivesTheSameBits) {
  for (DType dtype : kDataTypes)
    for (bool centered : {false, true}) {
      Array a = randoms(dtype, {2, 3, 37}, 4), b = randoms(dtype, {2, 3, 37}, 5);
      Array w = randoms(dtype, {37}, 6), bias = randoms(dtype, {37}, 7);
      KernelRun add("add"), plain(centered ? "layernorm" : "rmsnorm");
      KernelRun fused(centered ? "add_layernorm" : "add_rmsnorm");
      plain.attrs.eps = fused.attrs.eps = kEps;
      Array sum = add.in(a).in(b).out(dtype, a.shape).run()[0];
      plain.in(sum).in(w);
      fused.in(a).in(b).in(w);
      if (centered) {
        plain.in(bias);
        fused.in(bias);
      }
      fused.out(dtype, a.shape);
      for (KernelRun *run : {&plain, &fused}) {
        run->out(dtype, a.shape).out(DType::F32, {6});
        if (centered)
          run->out(DType::F32, {6});
      }
      std::vector<Array> want = plain.run(), got = fused.run();
      EXPECT_EQ(got[0].values, sum.values);
      for (size_t r = 0; r < want.size(); ++r)
        EXPECT_EQ(got[r + 1].values, want[r].values) << "result " << r;
    }
}

struct Backward {
  Array dy, x, w, dres;
  std::vector<double> mean, rstd;
  bool centered, zeroCentered;
};

Backward makeBackward(bool centered, Shape shape, DType dtype, bool zeroCentered) {
  Backward b = {randoms(dtype, {shape.rows, shape.cols}, 8),
                randoms(dtype, {shape.rows, shape.cols}, 9, 2.0),
                randoms(dtype, {shape.cols}, 10),
                randoms(dtype, {shape.rows, shape.cols}, 11),
                {},
                {},
                centered,
                zeroCentered};
  std::vector<double> zeros(b.w.values.size());
  norm(centered, b.x.values, b.w.values, zeros, 0, &b.mean, &b.rstd);
  return b;
}

KernelRun runOf(const Backward &b, bool withResidual) {
  KernelRun run(b.centered ? "layernorm_bwd" : "rmsnorm_bwd");
  run.attrs.eps = kEps;
  run.attrs.zero_centered = b.zeroCentered;
  run.in(b.dy).in(b.x).in(b.w);
  int64_t rows = b.x.shape[0];
  if (b.centered)
    run.in(array(DType::F32, {rows}, b.mean));
  run.in(array(DType::F32, {rows}, b.rstd));
  if (withResidual)
    run.in(b.dres);
  return run;
}

void checkBackward(const Backward &b, bool withResidual) {
  KernelRun run = runOf(b, withResidual);
  run.out(b.x.dtype, b.x.shape).out(DType::F32, b.w.shape);
  if (b.centered)
    run.out(DType::F32, b.w.shape);
  std::vector<Array> got = run.run();
  double plus = b.zeroCentered ? 1 : 0;
  std::vector<double> zeros(b.w.values.size());
  expectGradient(
      got[0], b.x.values,
      [&](const std::vector<double> &x) {
        return inner(b.dy.values, norm(b.centered, x, b.w.values, zeros, plus)) +
               (withResidual ? inner(b.dres.values, x) : 0);
      },
      kBackward, "dx");
  expectGradient(
      got[1], b.w.values,
      [&](const std::vector<double> &w) {
        return inner(b.dy.values, norm(b.centered, b.x.values, w, zeros, plus));
      },
      kBackward, "dw");
  if (b.centered)
    expectGradient(
        got[2], zeros,
        [&](const std::vector<double> &bias) {
          return inner(b.dy.values, norm(true, b.x.values, b.w.values, bias, plus));
        },
        kBackward, "dbias");
}

TEST(Norm, GradientsAreDifferences) {
  // A layernorm of one column is constant; its derivative would be only rounding.
  constexpr Shape shapes[] = {{1, 2}, {3, 5}, {4, 33}, {3, 256}};
  for (Shape shape : shapes)
    for (DType dtype : kDataTypes)
      for (int variant = 0; variant < 8; ++variant) {
        SCOPED_TRACE(testing::Message() << shape.rows << 'x' << shape.cols << ' '
                                        << dtypeName(dtype) << " variant " << variant);
        checkBackward(makeBackward(variant & 1, shape, dtype, variant & 2), variant & 4);
      }
}

TEST(Norm, WeightGradientsAddExactly) {
  for (DType dtype : kDataTypes)
    for (bool centered : {false, true}) {
      Backward b = makeBackward(centered, {9, 21}, dtype, false);
      KernelRun plain = runOf(b, false), accumulating = plain;
      Array old = randoms(dtype, b.w.shape, 12, 4.0);
      plain.out(dtype, b.x.shape);
      accumulating.out(dtype, b.x.shape);
      for (int r = 0; r < (centered ? 2 : 1); ++r) {
        plain.out(DType::F32, b.w.shape);
        accumulating.accumulate(old);
      }
      std::vector<Array> want = plain.run(), got = accumulating.run();
      EXPECT_EQ(got[0].values, want[0].values);
      for (size_t r = 1; r < want.size(); ++r)
        expectAccumulated(got[r], want[r], old);
    }
}

TEST(Norm, RmsNormGradientGivesTheNormAgain) {
  for (DType dtype : kDataTypes)
    for (bool zeroCentered : {false, true}) {
      Array x = randoms(dtype, {5, 77}, 1, 2.0), w = randoms(dtype, {77}, 2);
      Array dy = randoms(dtype, {5, 77}, 3);
      KernelRun forward("rmsnorm"), backward("rmsnorm_bwd");
      forward.attrs.eps = backward.attrs.eps = kEps;
      forward.attrs.zero_centered = backward.attrs.zero_centered = zeroCentered;
      std::vector<Array> y = forward.in(x).in(w).out(dtype, x.shape).out(DType::F32, {5}).run();
      backward.in(dy).in(x).in(w).in(y[1]);
      backward.out(dtype, x.shape).out(DType::F32, w.shape).out(dtype, x.shape);
      EXPECT_EQ(backward.run()[2].values, y[0].values);
    }
}

/// `count` columns of a matrix from `first` on.
Array columnsOf(const Array &whole, int64_t first, int64_t count) {
  int64_t cols = whole.shape.back(), rows = whole.numel() / cols;
  std::vector<double> values;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < count; ++c)
      values.push_back(whole[row * cols + first + c]);
  std::vector<int64_t> shape = whole.shape;
  shape.back() = count;
  return array(whole.dtype, std::move(shape), std::move(values));
}

/// The mean over whole rows, from the sums of parts of the rows.
Array meanOfParts(const std::vector<Array> &sums) {
  std::vector<double> mean(static_cast<size_t>(sums[0].numel()));
  for (const Array &part : sums)
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += part.values[i];
  return array(DType::F32, sums[0].shape, mean);
}

/// A part of the columns of a norm.
struct NormPart {
  Array dy, x, w;
};

std::vector<NormPart> partsOf(const Backward &b, int64_t own) {
  int64_t cols = b.w.numel();
  std::vector<NormPart> parts;
  for (auto [first, count] : {std::pair(int64_t{0}, own), std::pair(own, cols - own)})
    parts.push_back({columnsOf(b.dy, first, count), columnsOf(b.x, first, count),
                     columnsOf(b.w, first, count)});
  return parts;
}

Array dotsOf(const Array &a, const Array &b, const Array *w, int64_t cols, bool zeroCentered) {
  KernelRun run("dot_rows");
  run.attrs.scale = 1.0 / static_cast<double>(cols);
  run.attrs.zero_centered = zeroCentered;
  run.in(a).in(b);
  if (w)
    run.in(*w);
  return run.out(DType::F32, {a.shape[0], 1}).run()[0];
}

/// Norms of two parts of the columns equal the norm of all columns.
void checkParts(Shape shape, DType dtype, bool zeroCentered) {
  Backward b = makeBackward(false, shape, dtype, zeroCentered);
  std::vector<NormPart> parts = partsOf(b, shape.cols / 3 + 1);
  std::vector<Array> squares, dots;
  for (const NormPart &part : parts) {
    squares.push_back(dotsOf(part.x, part.x, nullptr, shape.cols, zeroCentered));
    dots.push_back(dotsOf(part.dy, part.x, &part.w, shape.cols, zeroCentered));
  }
  KernelRun forward("rmsnorm"), backward = runOf(b, false);
  forward.attrs.eps = kEps, forward.attrs.zero_centered = zeroCentered;
  forward.in(b.x).in(b.w).out(dtype, b.x.shape).out(DType::F32, {shape.rows});
  backward.out(dtype, b.x.shape).out(DType::F32, b.w.shape);
  Array y = forward.run()[0];
  std::vector<Array> gradients = backward.run();
  int64_t first = 0;
  for (const NormPart &part : parts) {
    int64_t count = part.w.numel();
    KernelRun own("rmsnorm_part"), back("rmsnorm_part_bwd");
    own.attrs.eps = back.attrs.eps = kEps;
    own.attrs.zero_centered = back.attrs.zero_centered = zeroCentered;
    own.in(part.x).in(part.w).in(meanOfParts(squares)).out(dtype, part.x.shape);
    back.in(part.dy).in(part.x).in(part.w).in(meanOfParts(squares)).in(meanOfParts(dots));
    back.out(dtype, part.x.shape).out(DType::F32, part.w.shape);
    expectClose(own.run()[0], columnsOf(y, first, count).values, kForward, "y");
    std::vector<Array> got = back.run();
    expectClose(got[0], columnsOf(gradients[0], first, count).values, kBackward, "dx");
    expectClose(got[1], columnsOf(gradients[1], first, count).values, kBackward, "dw");
    first += count;
  }
}

TEST(Norm, PartsOfColumnsAreThoseOfTheWhole) {
  for (Shape shape : {Shape{1, 2}, Shape{3, 5}, Shape{7, 33}, Shape{16, 256}})
    for (DType dtype : kDataTypes)
      for (bool zeroCentered : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << shape.rows << 'x' << shape.cols << ' ' << dtypeName(dtype) << zeroCentered);
        checkParts(shape, dtype, zeroCentered);
      }
}

} // namespace
} // namespace shardc::kernels::test
