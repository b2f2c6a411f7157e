// Compares cross entropy of ranks that have parts of the columns with that of all columns.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Split {
  int64_t members, rows, cols; ///< columns of each member
  int64_t valid;               ///< number of valid columns of all members; 0: all
};
/// Padding within the last part, in more than the last part, and none; more columns than one block.
constexpr Split kSplits[] = {{1, 3, 7, 0}, {2, 5, 4, 7},      {3, 5, 4, 0},
                             {4, 6, 3, 5}, {2, 4, 600, 1100}, {8, 9, 2, 1}};

/// The columns of one member.
Array columnsOf(const Array &logits, int64_t cols, int64_t index) {
  Array part = {logits.dtype, {logits.shape[0], cols}, {}};
  int64_t all = logits.shape[1];
  for (int64_t row = 0; row < logits.shape[0]; ++row)
    for (int64_t c = 0; c < cols; ++c)
      part.values.push_back(logits[row * all + index * cols + c]);
  return part;
}

/// A batch, and the results of the op over all columns.
struct Batch {
  Split split;
  Array logits, labels, mask, tokens;
  Array losses, lse;

  Batch(const Split &s, DType dtype)
      : split(s), logits(randoms(dtype, {s.rows, s.cols * s.members}, 3, 6.0)),
        labels(indices(DType::I32, {s.rows}, 1, s.valid == 0 ? s.cols * s.members : s.valid)),
        mask(indices(DType::F32, {s.rows}, 2, 2)), tokens(constant(DType::F32, {1}, 3)) {
    mask.values[0] = 1;
  }

  void runWhole() {
    KernelRun whole("cross_entropy");
    whole.attrs.valid_cols = split.valid;
    whole.in(logits).in(labels).in(mask).out(DType::F32, {split.rows});
    std::vector<Array> got = whole.out(DType::F32, {split.rows}).run();
    losses = got[0], lse = got[1];
  }

  KernelRun member(const char *op, int64_t index) const {
    KernelRun run(op);
    run.attrs.valid_cols = split.valid;
    run.index = index, run.groupSize = split.members;
    return run;
  }

  /// The statistics of all members, as an all_gather gives them.
  Array stats() const {
    Array all = {DType::F32, {3 * split.members, split.rows}, {}};
    for (int64_t index = 0; index < split.members; ++index) {
      KernelRun run = member("vocab_stats", index);
      run.in(columnsOf(logits, split.cols, index)).in(labels);
      Array part = run.out(DType::F32, {3, split.rows}).run()[0];
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
    }
    return all;
  }

  std::vector<Array> join() const {
    KernelRun run("vocab_loss");
    run.in(stats()).in(mask).out(DType::F32, {split.rows});
    return run.out(DType::F32, {split.rows}).run();
  }
};

TEST(VocabLoss, IsThatOfAllColumns) {
  for (const Split &split : kSplits)
    for (DType dtype : kDataTypes) {
      Batch batch(split, dtype);
      batch.runWhole();
      std::vector<Array> got = batch.join();
      expectClose(got[0], batch.losses.values, {1e-6, 1}, "losses");
      expectClose(got[1], batch.lse.values, {1e-6, 1}, "lse");
    }
}

TEST(VocabLoss, GradientsOfMembersAreTheirColumnsOfThatOfAll) {
  for (const Split &split : kSplits)
    for (DType dtype : kDataTypes)
      for (bool perToken : {false, true}) {
        Batch batch(split, dtype);
        batch.runWhole();
        auto gradient = [&](KernelRun run, const Array &logits) {
          run.attrs.per_token = perToken, run.attrs.loss_scale = 0.5;
          run.in(logits).in(batch.lse).in(batch.labels).in(batch.mask).in(batch.tokens);
          return run.out(dtype, logits.shape).run()[0];
        };
        KernelRun whole("cross_entropy_bwd");
        whole.attrs.valid_cols = split.valid;
        Array want = gradient(whole, batch.logits);
        for (int64_t index = 0; index < split.members; ++index) {
          Array part = columnsOf(batch.logits, split.cols, index);
          EXPECT_EQ(gradient(batch.member("cross_entropy_bwd", index), part).values,
                    columnsOf(want, split.cols, index).values);
        }
      }
}

TEST(VocabLoss, LargeLogitsDoNotOverflow) {
  Batch batch({2, 4, 5, 9}, DType::F32);
  for (int64_t i = 0; i < batch.logits.numel(); ++i)
    batch.logits.values[static_cast<size_t>(i)] = i % 3 == 0 ? 3e4 : -3e4;
  batch.runWhole();
  std::vector<Array> got = batch.join();
  expectClose(got[0], batch.losses.values, {0, 1}, "losses");
  expectClose(got[1], batch.lse.values, {0, 1}, "lse");
}

/// If one member's columns are all -inf, or contain NaN, the result is that of all columns
/// together.
TEST(VocabLoss, InfinitiesAndNansAreThoseOfAllColumns) {
  Batch batch({2, 3, 4, 0}, DType::F32);
  batch.mask = constant(DType::F32, {3}, 1);
  for (int64_t c = 0; c < 4; ++c)
    batch.logits.values[static_cast<size_t>(4 + c)] = -kInfinity; // row 0, second member
  batch.labels.values = {1, 2, 3};
  batch.logits.values[8] = NAN; // row 1
  batch.runWhole();
  std::vector<Array> got = batch.join();
  EXPECT_NEAR(got[0][0], batch.losses[0], 1e-6);
  EXPECT_TRUE(std::isnan(batch.losses[1]) && std::isnan(got[0][1]) && std::isnan(got[1][1]));
  EXPECT_NEAR(got[0][2], batch.losses[2], 1e-6);
}

TEST(VocabLoss, LabelsOfMaskedRowsDoNotMatter) {
  Batch batch({2, 4, 3, 5}, DType::F32);
  batch.labels.values = {-100, 5, 4, 100}; // 5 is padding
  batch.mask.values = {0, 1, 1, 0};
  std::vector<Array> got = batch.join();
  EXPECT_EQ(got[0][0], 0);
  EXPECT_TRUE(std::isnan(got[0][1])) << "a label in the padding must not pass";
  EXPECT_TRUE(std::isfinite(got[0][2]));
  EXPECT_EQ(got[0][3], 0);
  for (int64_t row = 0; row < 4; ++row)
    EXPECT_TRUE(std::isfinite(got[1][row]));
  KernelRun back = batch.member("cross_entropy_bwd", 0);
  back.in(columnsOf(batch.logits, 3, 0)).in(got[1]).in(batch.labels).in(batch.mask);
  Array d = back.in(batch.tokens).out(DType::F32, {4, 3}).run()[0];
  EXPECT_EQ(d[0], 0);
  EXPECT_TRUE(std::isnan(d[3])) << "on each member";
  EXPECT_TRUE(std::isfinite(d[6]));
}

TEST(VocabLoss, RefusesOtherShapes) {
  Batch batch({2, 3, 4, 0}, DType::F32);
  KernelRun stats = batch.member("vocab_stats", 0), loss("vocab_loss");
  stats.attrs.valid_cols = 9;
  stats.in(columnsOf(batch.logits, 4, 0)).in(batch.labels).out(DType::F32, {3, 3});
  EXPECT_STREQ(stats.refusal(), "valid_cols is not from 0 to the columns of the logits");
  loss.in(constant(DType::F32, {4, 3}, 0)).in(batch.mask).out(DType::F32, {3});
  EXPECT_STREQ(loss.out(DType::F32, {3}).refusal(),
               "extents of operands and results do not fit each other");
}

} // namespace
} // namespace shardc::kernels::test
