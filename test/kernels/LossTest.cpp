// Compares cross entropy, on whole logits and in chunks, with formulas in double and their
// differences.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

using Vector = std::vector<double>;

struct Shape {
  int64_t rows, cols, valid;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {5, 7, 4}, {9, 1030, 1021}};

struct Batch {
  Array labels, mask;
  double tokens = 0;
};

Batch makeBatch(const Shape &s) {
  Batch batch = {indices(DType::I32, {s.rows}, 1, s.valid), indices(DType::F32, {s.rows}, 2, 2), 0};
  batch.mask.values[0] = 1;
  for (double value : batch.mask.values)
    batch.tokens += value;
  return batch;
}

double lse(const double *logits, int64_t valid) {
  double largest = *std::max_element(logits, logits + valid), total = 0;
  for (int64_t i = 0; i < valid; ++i)
    total += std::exp(logits[i] - largest);
  return largest + std::log(total);
}

Vector losses(const Vector &logits, const Shape &s, const Batch &batch) {
  Vector result;
  for (int64_t row = 0; row < s.rows; ++row) {
    const double *x = logits.data() + row * s.cols;
    result.push_back(batch.mask[row] *
                     (lse(x, s.valid) - x[static_cast<int64_t>(batch.labels[row])]));
  }
  return result;
}

double sum(const Vector &values) {
  double total = 0;
  for (double value : values)
    total += value;
  return total;
}

Vector product(const Vector &x, const Vector &w, int64_t hidden) {
  Vector logits;
  for (size_t t = 0; t < x.size(); t += static_cast<size_t>(hidden))
    for (size_t v = 0; v < w.size(); v += static_cast<size_t>(hidden)) {
      double total = 0;
      for (size_t i = 0; i < static_cast<size_t>(hidden); ++i)
        total += x[t + i] * w[v + i];
      logits.push_back(total);
    }
  return logits;
}

/// Tolerance for lse and losses of a few units in fp32.
constexpr Tolerance kLoss = {2e-6, 4};

TEST(Loss, CrossEntropy) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes) {
      Array logits = randoms(dtype, {s.rows, s.cols}, 3, 4.0);
      Batch batch = makeBatch(s);
      KernelRun run("cross_entropy");
      run.attrs.valid_cols = s.valid;
      run.in(logits).in(batch.labels).in(batch.mask);
      run.out(DType::F32, {s.rows}).out(DType::F32, {s.rows});
      std::vector<Array> got = run.run();
      Vector wanted;
      for (int64_t row = 0; row < s.rows; ++row)
        wanted.push_back(lse(logits.values.data() + row * s.cols, s.valid));
      expectClose(got[0], losses(logits.values, s, batch), kLoss, "losses");
      expectClose(got[1], wanted, kLoss, "lse");
    }
}

TEST(Loss, CrossEntropyGradient) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes)
      for (bool perToken : {false, true}) {
        Array logits = randoms(dtype, {s.rows, s.cols}, 4, 4.0);
        Batch batch = makeBatch(s);
        Vector logSums;
        for (int64_t row = 0; row < s.rows; ++row)
          logSums.push_back(lse(logits.values.data() + row * s.cols, s.valid));
        KernelRun run("cross_entropy_bwd");
        run.attrs.valid_cols = s.valid;
        run.attrs.per_token = perToken;
        run.attrs.loss_scale = 0.5;
        run.in(logits).in(array(DType::F32, {s.rows}, logSums)).in(batch.labels).in(batch.mask);
        run.in(constant(DType::F32, {1}, batch.tokens)).out(dtype, logits.shape);
        Array got = run.run()[0];
        double factor = 0.5 / (perToken ? 1 : batch.tokens);
        expectGradient(
            got, logits.values, [&](const Vector &x) { return factor * sum(losses(x, s, batch)); },
            {1e-6, 8}, "dlogits", 60);
        for (int64_t i = 0; i < got.numel(); ++i)
          ASSERT_TRUE(i % s.cols < s.valid || got[i] == 0) << "padded column " << i;
      }
}

TEST(Loss, LabelsOfMaskedRowsDoNotMatter) {
  Array logits = randoms(DType::F32, {3, 6}, 5), labels = array(DType::I32, {3}, {-100, 5, 2});
  Array mask = array(DType::F32, {3}, {0, 1, 1});
  KernelRun forward("cross_entropy"), backward("cross_entropy_bwd");
  forward.attrs.valid_cols = backward.attrs.valid_cols = 5;
  forward.in(logits).in(labels).in(mask).out(DType::F32, {3}).out(DType::F32, {3});
  std::vector<Array> got = forward.run();
  EXPECT_EQ(got[0][0], 0);
  EXPECT_TRUE(std::isnan(got[0][1])) << "a label in the padding must not pass";
  EXPECT_TRUE(std::isfinite(got[0][2]));
  backward.in(logits).in(got[1]).in(labels).in(mask).in(constant(DType::F32, {1}, 2));
  Array dlogits = backward.out(DType::F32, {3, 6}).run()[0];
  EXPECT_EQ(dlogits[0], 0);
  EXPECT_TRUE(std::isnan(dlogits[6]));
  EXPECT_TRUE(std::isfinite(dlogits[12]));
}

TEST(Loss, NoTokensDivideByOne) {
  Array logits = randoms(DType::F32, {1, 3}, 6);
  KernelRun run("cross_entropy_bwd");
  run.in(logits).in(constant(DType::F32, {1}, 1)).in(constant(DType::I32, {1}, 0));
  run.in(constant(DType::F32, {1}, 0)).in(constant(DType::F32, {1}, 0)).out(DType::F32, {1, 3});
  EXPECT_EQ(run.run()[0].values, Vector(3, 0.0));
}

constexpr int64_t kHidden = 6;

KernelRun fused(const char *op, const Shape &s, const Array &x, const Array &w, const Batch &batch,
                int64_t chunk) {
  KernelRun run(op);
  run.attrs.valid_cols = s.valid;
  run.attrs.chunk_rows = chunk;
  run.in(x).in(w).in(batch.labels).in(batch.mask);
  return run;
}

TEST(Loss, FusedWithTheProduct) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes)
      for (int64_t chunk : {0, 1, 4, 100}) {
        SCOPED_TRACE(testing::Message() << s.rows << ' ' << dtypeName(dtype) << " chunk " << chunk);
        Array x = randoms(dtype, {s.rows, kHidden}, 7), w = randoms(dtype, {s.cols, kHidden}, 8);
        Batch batch = makeBatch(s);
        auto loss = [&](const Vector &atX, const Vector &atW) {
          return sum(losses(product(atX, atW, kHidden), s, batch)) / batch.tokens;
        };
        KernelRun forward = fused("lm_loss", s, x, w, batch, chunk);
        KernelRun backward = fused("lm_loss_grad", s, x, w, batch, chunk);
        forward.out(DType::F32, {s.rows});
        backward.in(constant(DType::F32, {1}, batch.tokens)).out(DType::F32, {s.rows});
        backward.out(dtype, x.shape).out(dtype, w.shape);
        Vector want = losses(product(x.values, w.values, kHidden), s, batch);
        std::vector<Array> got = backward.run();
        expectClose(forward.run()[0], want, kLoss, "losses");
        EXPECT_EQ(got[0].values, forward.run()[0].values);
        expectGradient(
            got[1], x.values, [&](const Vector &at) { return loss(at, w.values); }, {1e-6, 4},
            "dx");
        expectGradient(
            got[2], w.values, [&](const Vector &at) { return loss(x.values, at); }, {1e-6, 4},
            "dw");
      }
}

TEST(Loss, FusedWeightGradientAddsExactly) {
  Shape s = {37, 50, 50};
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {s.rows, kHidden}, 9), w = randoms(dtype, {s.cols, kHidden}, 10);
    Array old = randoms(dtype, w.shape, 11);
    Batch batch = makeBatch(s);
    KernelRun plain = fused("lm_loss_grad", s, x, w, batch, 8);
    plain.in(constant(DType::F32, {1}, batch.tokens)).out(DType::F32, {s.rows}).out(dtype, x.shape);
    KernelRun accumulating = plain;
    plain.out(DType::F32, w.shape);
    accumulating.accumulate(old);
    std::vector<Array> want = plain.run(), got = accumulating.run();
    EXPECT_EQ(got[1].values, want[1].values);
    expectAccumulated(got[2], want[2], old);
  }
}

TEST(Loss, FusedAgreesWithItsParts) {
  Shape s = {20, 33, 30};
  Array x = randoms(DType::F32, {s.rows, kHidden}, 12),
        w = randoms(DType::F32, {s.cols, kHidden}, 13);
  Batch batch = makeBatch(s);
  Array n = constant(DType::F32, {1}, batch.tokens);
  KernelRun matmul("matmul"), loss("cross_entropy"), gradient("cross_entropy_bwd"), dx("matmul");
  matmul.attrs.trans_b = true;
  loss.attrs.valid_cols = gradient.attrs.valid_cols = s.valid;
  Array logits = matmul.in(x).in(w).out(DType::F32, {s.rows, s.cols}).run()[0];
  loss.in(logits)
      .in(batch.labels)
      .in(batch.mask)
      .out(DType::F32, {s.rows})
      .out(DType::F32, {s.rows});
  std::vector<Array> parts = loss.run();
  gradient.in(logits).in(parts[1]).in(batch.labels).in(batch.mask).in(n);
  Array dlogits = gradient.out(DType::F32, logits.shape).run()[0];
  KernelRun whole = fused("lm_loss_grad", s, x, w, batch, 0);
  whole.in(n).out(DType::F32, {s.rows}).out(DType::F32, x.shape).out(DType::F32, w.shape);
  std::vector<Array> got = whole.run();
  // With one chunk, the products and operands are the same, hence the bits too.
  EXPECT_EQ(got[0].values, parts[0].values);
  EXPECT_EQ(got[1].values, dx.in(dlogits).in(w).out(DType::F32, x.shape).run()[0].values);
}

} // namespace
} // namespace shardc::kernels::test
