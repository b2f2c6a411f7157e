// Compares the load of experts and its losses with formulas in fp64, gradients with differences,
// and tests the effects of the load: the bias, and dropped choices.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "runtime/base/Router.h"

namespace shardc::kernels::test {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kExperts = 5;
constexpr int64_t kScores[] = {kRouterSoftmax, kRouterSigmoid, kRouterSqrtSoftplus};

double scoreOf(int64_t score, double logit) {
  if (score == kRouterSoftmax)
    return std::exp(logit);
  return score == kRouterSigmoid ? 1 / (1 + std::exp(-logit))
                                 : std::sqrt(std::log1p(std::exp(logit)));
}

/// A row of a matrix.
Numbers rowOf(const Numbers &matrix, int64_t row, int64_t cols) {
  auto begin = matrix.begin() + row * cols;
  return Numbers(begin, begin + cols);
}

/// scale · sum over e of load[e] · share of e.
double lossOf(int64_t score, const Numbers &logits, const Numbers &load, double scale) {
  double sum = 0, loss = 0;
  for (double logit : logits)
    sum += scoreOf(score, logit);
  for (size_t e = 0; e < logits.size(); ++e)
    loss += scale * load[e] * scoreOf(score, logits[e]) / sum;
  return loss;
}

double zLossOf(const Numbers &logits, double scale) {
  double sum = 0;
  for (double logit : logits)
    sum += std::exp(logit);
  return scale * std::log(sum) * std::log(sum);
}

// ---- load ----

Array loadOf(const Array &ids, int64_t parts, int64_t index = 0, int64_t members = 1) {
  KernelRun run("expert_load");
  run.index = index, run.groupSize = members;
  return run.in(ids).out(DType::F32, {parts, kExperts}).run()[0];
}

TEST(ExpertLoad, CountsTheChoicesOfEachPart) {
  Array ids = array(DType::I32, {4, 2}, {0, 1, 1, 4, -1, 5, 1, 0});
  EXPECT_EQ(loadOf(ids, 1).values, (Numbers{2, 3, 0, 0, 1}));
  EXPECT_EQ(loadOf(ids, 2).values, (Numbers{1, 2, 0, 0, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(loadOf(ids, 4).values,
            (Numbers{1, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0}));
}

/// Members have parts of the rows, which may be smaller or larger than one part of the load.
TEST(ExpertLoad, OfMembersMakesTheLoadOfAllRows) {
  Array ids = indices(DType::I32, {12, 2}, 1, kExperts);
  for (int64_t parts : {1, 2, 3, 6})
    for (int64_t members : {2, 3, 4, 6}) {
      Numbers sum(static_cast<size_t>(parts * kExperts));
      for (int64_t index = 0; index < members; ++index) {
        int64_t rows = 12 / members;
        Numbers own(ids.values.begin() + index * rows * 2,
                    ids.values.begin() + (index + 1) * rows * 2);
        Array load = loadOf(array(DType::I32, {rows, 2}, own), parts, index, members);
        for (size_t i = 0; i < sum.size(); ++i)
          sum[i] += load[static_cast<int64_t>(i)];
      }
      EXPECT_EQ(sum, loadOf(ids, parts).values) << parts << " parts of " << members;
    }
}

TEST(ExpertLoad, AddsUpMicrobatches) {
  Array ids = indices(DType::I32, {6, 2}, 2, kExperts);
  Array old = array(DType::F32, {1, kExperts}, {10, 20, 30, 40, 50});
  KernelRun run("expert_load");
  Array got = run.in(ids).accumulate(old).run()[0];
  expectAccumulated(got, loadOf(ids, 1), old);
}

// ---- losses ----

/// Rows in two parts with different loads.
struct LossCase {
  int64_t rows = 8, parts = 2;
  Array logits = randoms(DType::F32, {2, 4, kExperts}, 3, 2);
  Array load = array(DType::F32, {2, kExperts}, {3, 0, 1, 4, 0, 1, 1, 2, 2, 2});
  double scale = 0.3;

  Numbers loadOfRow(int64_t row) const { return rowOf(load.values, row * parts / rows, kExperts); }
  Numbers losses(int64_t score) const {
    Numbers want;
    for (int64_t t = 0; t < rows; ++t)
      want.push_back(lossOf(score, rowOf(logits.values, t, kExperts), loadOfRow(t), scale));
    return want;
  }
};

TEST(RouterLoss, IsTheLoadTimesTheShares) {
  LossCase on;
  for (int64_t score : kScores) {
    KernelRun run("router_loss");
    run.attrs.score = score, run.attrs.scale = on.scale;
    Array got = run.in(on.logits).in(on.load).out(DType::F32, {on.rows}).run()[0];
    expectClose(got, on.losses(score), {1e-7, 2}, "losses");
    // A member's rows belong to the same parts as among all rows.
    for (int64_t index = 0; index < 4; ++index) {
      KernelRun own("router_loss");
      own.attrs = run.attrs, own.index = index, own.groupSize = 4;
      Numbers rows(on.logits.values.begin() + index * 2 * kExperts,
                   on.logits.values.begin() + (index + 1) * 2 * kExperts);
      own.in(array(DType::F32, {2, kExperts}, rows)).in(on.load).out(DType::F32, {2});
      EXPECT_EQ(own.run()[0].values, rowOf(got.values, index, 2));
    }
  }
}

/// Factors on the loss: an attribute, and the loss scale of a step state.
StepState scaledState() {
  StepState state = {};
  state.lossScale = 8;
  return state;
}

TEST(RouterLoss, GradientIsThatOfTheSumOfTheLosses) {
  LossCase on;
  for (int64_t score : kScores)
    for (bool hasState : {false, true}) {
      KernelRun run("router_loss_bwd");
      run.attrs.score = score, run.attrs.scale = on.scale, run.attrs.loss_scale = 0.25;
      run.in(on.logits).in(on.load);
      if (hasState)
        run.in(stateArray(scaledState()));
      run.out(DType::F32, on.logits.shape);
      Numbers want;
      double factor = (hasState ? 8 : 1) * 0.25;
      for (int64_t t = 0; t < on.rows; ++t) {
        Numbers of = numericGradient(rowOf(on.logits.values, t, kExperts), [&](const Numbers &x) {
          return factor * lossOf(score, x, on.loadOfRow(t), on.scale);
        });
        want.insert(want.end(), of.begin(), of.end());
      }
      expectClose(run.run()[0], want, {1e-6, 2}, "dlogits");
    }
}

TEST(RouterLoss, OfLogitsPushesTheirLogSumTowardsZero) {
  LossCase on;
  KernelRun run("router_z_loss");
  run.attrs.scale = on.scale;
  run.in(on.logits).out(DType::F32, {on.rows});
  Numbers want, gradient;
  for (int64_t t = 0; t < on.rows; ++t) {
    Numbers row = rowOf(on.logits.values, t, kExperts);
    want.push_back(zLossOf(row, on.scale));
    Numbers of = numericGradient(row, [&](const Numbers &x) { return 2 * zLossOf(x, on.scale); });
    gradient.insert(gradient.end(), of.begin(), of.end());
  }
  expectClose(run.run()[0], want, {1e-7, 2}, "losses");
  KernelRun bwd("router_z_loss_bwd");
  bwd.attrs.scale = on.scale, bwd.attrs.loss_scale = 0.25;
  bwd.in(on.logits).in(stateArray(scaledState())).out(DType::F32, on.logits.shape);
  expectClose(bwd.run()[0], gradient, {1e-6, 2}, "dlogits");
}

/// Losses and gradients of very large logits are finite.
TEST(RouterLoss, OfLargeLogitsIsFinite) {
  Array logits = array(DType::F32, {1, kExperts}, {3e4, -3e4, 0, 2.9e4, 3e4});
  for (int64_t score : kScores)
    for (const char *op : {"router_loss", "router_loss_bwd"}) {
      KernelRun run(op);
      run.attrs.score = score;
      run.in(logits).in(constant(DType::F32, {1, kExperts}, 2));
      bool isBwd = std::string(op) != "router_loss";
      isBwd ? run.out(DType::F32, {1, kExperts}) : run.out(DType::F32, {1});
      Numbers got = run.run()[0].values;
      EXPECT_TRUE(std::ranges::all_of(got, [](double each) { return std::isfinite(each); })) << op;
      if (!isBwd) {
        EXPECT_NEAR(got[0], 2, 1e-6) << "shares of a row are 1 together";
      }
    }
}

TEST(RouterLoss, RefusesOtherLoads) {
  LossCase on;
  KernelRun parts("router_loss");
  parts.in(on.logits).in(constant(DType::F32, {3, kExperts}, 0)).out(DType::F32, {on.rows});
  EXPECT_STREQ(parts.refusal(), "extents of operands and results do not fit each other");
  KernelRun experts("router_loss");
  experts.in(on.logits).in(constant(DType::F32, {2, kExperts + 1}, 0)).out(DType::F32, {on.rows});
  EXPECT_STREQ(experts.refusal(), "extents of operands and results do not fit each other");
}

TEST(Tally, IsTheSumOfTheRowsInItsSlot) {
  Array x = array(DType::F32, {2, 3}, {1, 2, 3, 10, 20, 30});
  auto tally = [&](KernelRun run) {
    run.attrs.slots = 3, run.attrs.slot = 1, run.attrs.scale = 0.5;
    return run;
  };
  KernelRun alone = tally(KernelRun("tally"));
  EXPECT_EQ(alone.in(x).out(DType::F32, {3, 3}).run()[0].values,
            (Numbers{0, 0, 0, 5.5, 11, 16.5, 0, 0, 0}));
  KernelRun more = tally(KernelRun("tally"));
  EXPECT_EQ(more.in(x).accumulate(constant(DType::F32, {3, 3}, 7)).run()[0].values,
            (Numbers{7, 7, 7, 12.5, 18, 23.5, 7, 7, 7}));
  KernelRun mean = tally(KernelRun("tally"));
  EXPECT_EQ(mean.in(x).in(array(DType::F32, {1}, {4})).out(DType::F32, {3, 3}).run()[0].values,
            (Numbers{0, 0, 0, 1.375, 2.75, 4.125, 0, 0, 0}));
  KernelRun ofNone = tally(KernelRun("tally")); // divided by 1
  EXPECT_EQ(ofNone.in(x).in(array(DType::F32, {1}, {0})).out(DType::F32, {3, 3}).run()[0].values,
            (Numbers{0, 0, 0, 5.5, 11, 16.5, 0, 0, 0}));
  KernelRun counts = tally(KernelRun("tally"));
  counts.in(x).in(array(DType::I32, {1}, {4})).out(DType::F32, {3, 3});
  EXPECT_STREQ(counts.refusal(), "an operand or result does not have the type of the op's row");
  KernelRun none = tally(KernelRun("tally"));
  none.attrs.slot = 3;
  EXPECT_STREQ(none.in(x).out(DType::F32, {3, 3}).refusal(), "the slot is none of the slots");
}

TEST(RunningMean, IsOverTheMicrobatchesSoFar) {
  for (int64_t microbatch : {0, 1, 3}) {
    KernelRun run("running_mean");
    run.microbatch = microbatch, run.microbatches = 4;
    Array got = run.in(array(DType::F32, {1, 2}, {12, 30})).out(DType::F32, {1, 2}).run()[0];
    auto count = static_cast<double>(microbatch + 1);
    EXPECT_EQ(got.values, (Numbers{12 / count, 30 / count}));
  }
}

// ---- effects of the load ----

/// The bias of an expert with more rows than the mean decreases; each row of the array has its own
/// mean.
TEST(ExpertBias, ChangesAgainstTheLoad) {
  Array bias = array(DType::F32, {2, 4}, {0.5, 0, -0.25, 1, 0, 0, 0, 0});
  Array load = array(DType::F32, {2, 4}, {1, 3, 2, 2, 7, 0, 0, 0});
  KernelRun run("expert_bias.update");
  run.attrs.rate = 0.125, run.attrs.experts = 4;
  Array got = run.in(bias).in(load).inPlace(0).run()[0];
  EXPECT_EQ(got.values, (Numbers{0.625, -0.125, -0.25, 1, -0.125, 0.125, 0.125, 0.125}));
}

/// Arrays may have more columns than experts; their biases stay.
TEST(ExpertBias, OfNoExpertStays) {
  Array bias = array(DType::F32, {2, 4}, {0, 0, 9, 9, 0, 0, 9, 9});
  Array load = array(DType::F32, {2, 4}, {1, 3, 0, 0, 2, 2, 0, 0});
  KernelRun run("expert_bias.update");
  run.attrs.rate = 0.125, run.attrs.experts = 2;
  Array got = run.in(bias).in(load).inPlace(0).run()[0];
  EXPECT_EQ(got.values, (Numbers{0.125, -0.125, 9, 9, 0, 0, 9, 9}));
  KernelRun more("expert_bias.update");
  more.attrs.experts = 5;
  EXPECT_STREQ(more.in(bias).in(load).inPlace(0).refusal(), "a row is not of so many experts");
}

Numbers dropped(const Numbers &ids, const Numbers &weights, double factor, bool byPosition) {
  auto rows = static_cast<int64_t>(ids.size()) / 2;
  KernelRun run("router_drop");
  run.attrs.experts = 3, run.attrs.capacity_factor = factor, run.attrs.by_position = byPosition;
  run.in(array(DType::I32, {rows, 2}, ids)).in(array(DType::F32, {rows, 2}, weights));
  return run.out(DType::I32, {rows, 2}).run()[0].values;
}

/// Four rows with two of three experts each: the capacity is 8/3 rows per expert, rounded up.
TEST(RouterDrop, KeepsWhatThereIsRoomFor) {
  Numbers ids = {0, 1, 0, 2, 0, 1, 0, 2}, weights = {0.2, 0.8, 0.4, 0.6, 0.1, 0.9, 0.3, 0.7};
  EXPECT_EQ(dropped(ids, weights, 1, false), (Numbers{0, 1, 0, 2, -1, 1, 0, 2}));
  EXPECT_EQ(dropped(ids, weights, 1, true), (Numbers{0, 1, 0, 2, 0, 1, -1, 2}));
  EXPECT_EQ(dropped(ids, weights, 0.3, false), (Numbers{-1, -1, 0, -1, -1, 1, -1, 2}));
  EXPECT_EQ(dropped(ids, weights, 0.3, true), (Numbers{0, 1, -1, 2, -1, -1, -1, -1}));
  EXPECT_EQ(dropped(ids, weights, 1.5, false), ids) << "4 rows are the most that there can be";
  EXPECT_EQ(dropped(ids, weights, 1e300, true), ids);
}

/// If weights are equal, the first row is kept. Ids that are not experts stay unchanged, and need
/// no capacity.
TEST(RouterDrop, TiesGoToTheFirstRow) {
  EXPECT_EQ(dropped({0, 1, 0, 1, 0, -1, 0, 5}, Numbers(8, 0.5), 0.75, false),
            (Numbers{0, 1, 0, 1, -1, -1, -1, 5}));
}

/// Compares with a formula: an expert keeps a choice if fewer than its capacity have larger
/// weights.
TEST(RouterDrop, OfManyRowsKeepsThoseWithTheLargestWeights) {
  Array ids = indices(DType::I32, {60, 2}, 4, 3), weights = randoms(DType::F32, {60, 2}, 5);
  int64_t capacity = 28; // 120 / 3 · 0.7
  Numbers want = ids.values;
  for (size_t i = 0; i < want.size(); ++i) {
    int64_t before = 0;
    for (size_t j = 0; j < want.size(); ++j)
      before += ids.values[j] == ids.values[i] && weights.values[j] > weights.values[i] ? 1 : 0;
    want[i] = before < capacity ? ids.values[i] : -1;
  }
  EXPECT_EQ(dropped(ids.values, weights.values, 0.7, false), want);
  EXPECT_GT(std::ranges::count(want, -1), 0);
}

} // namespace
} // namespace shardc::kernels::test
