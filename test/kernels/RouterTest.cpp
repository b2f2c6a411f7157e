// Compares routers with formulas in fp64: experts by rank of scores, weights by sums over the
// chosen ones, and gradients by differences.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "runtime/base/Router.h"

namespace shardc::kernels::test {
namespace {

struct Setting {
  const char *name;
  int64_t score;
  bool isOfAll;
  int64_t experts, topk, groups, groupTopk;
  bool hasBias;
  double scale;
};

/// Each score function, with one expert per row and with all experts; groups that are judged by one
/// score and by several; all groups chosen, and one.
const Setting kSettings[] = {
    {"softmax", kRouterSoftmax, false, 6, 2, 0, 0, false, 1},
    {"softmax of all", kRouterSoftmax, true, 6, 3, 0, 0, false, 2.5},
    {"softmax of one", kRouterSoftmax, false, 5, 1, 0, 0, false, 1},
    {"softmax of all, one", kRouterSoftmax, true, 5, 1, 0, 0, false, 1},
    {"softmax of all, groups", kRouterSoftmax, true, 8, 4, 4, 2, false, 1},
    {"softmax, groups", kRouterSoftmax, false, 8, 2, 4, 2, false, 1},
    {"softmax, every expert", kRouterSoftmax, false, 4, 4, 0, 0, false, 1},
    {"sigmoid", kRouterSigmoid, false, 6, 2, 0, 0, false, 1},
    {"sigmoid of one", kRouterSigmoid, false, 6, 1, 0, 0, true, 1.5},
    {"sigmoid, bias", kRouterSigmoid, false, 6, 3, 0, 0, true, 2.5},
    {"sigmoid, bias, groups", kRouterSigmoid, false, 12, 4, 4, 2, true, 2.5},
    {"sigmoid, one group", kRouterSigmoid, false, 9, 3, 3, 1, true, 1},
    {"sigmoid, all groups", kRouterSigmoid, false, 6, 3, 3, 3, false, 1},
    {"sqrtsoftplus", kRouterSqrtSoftplus, false, 6, 2, 0, 0, false, 1},
    {"sqrtsoftplus, bias, groups", kRouterSqrtSoftplus, false, 8, 4, 4, 2, true, 1.5},
    {"sqrtsoftplus of one", kRouterSqrtSoftplus, false, 7, 1, 0, 0, true, 1}};

using Numbers = std::vector<double>;
using Ids = std::vector<size_t>;

/// Number of elements that are ordered before the i-th.
int64_t rankOf(const Numbers &numbers, size_t i) {
  int64_t rank = 0;
  for (size_t j = 0; j < numbers.size(); ++j)
    rank += numbers[j] > numbers[i] || (numbers[j] == numbers[i] && j < i) ? 1 : 0;
  return rank;
}

Numbers softmaxOf(const Numbers &logits) {
  Numbers out;
  for (double each : logits) {
    double sum = 0;
    for (double other : logits)
      sum += std::exp(other - each);
    out.push_back(1 / sum);
  }
  return out;
}

Numbers scoresOf(const Setting &setting, const Numbers &logits) {
  if (setting.score == kRouterSoftmax)
    return setting.isOfAll ? softmaxOf(logits) : logits;
  Numbers out;
  for (double logit : logits)
    out.push_back(setting.score == kRouterSigmoid ? 1 / (1 + std::exp(-logit))
                                                  : std::sqrt(std::log1p(std::exp(logit))));
  return out;
}

double asFloat(double value) { return static_cast<double>(static_cast<float>(value)); }

/// The chosen experts, best first.
Ids choose(const Setting &setting, const Numbers &logits, const Numbers &bias) {
  Numbers keys = scoresOf(setting, logits);
  for (size_t e = 0; e < keys.size(); ++e)
    keys[e] = asFloat(asFloat(keys[e]) + (setting.hasBias ? bias[e] : 0));
  if (setting.groups > 0) {
    size_t size = keys.size() / static_cast<size_t>(setting.groups);
    Numbers sums;
    for (size_t begin = 0; begin < keys.size(); begin += size) {
      Numbers group(keys.begin() + static_cast<ptrdiff_t>(begin),
                    keys.begin() + static_cast<ptrdiff_t>(begin + size));
      sums.push_back(0);
      for (size_t i = 0; i < size; ++i)
        sums.back() += rankOf(group, i) < setting.topk / setting.groupTopk ? group[i] : 0;
    }
    for (size_t e = 0; e < keys.size(); ++e)
      if (rankOf(sums, e / size) >= setting.groupTopk)
        keys[e] = -std::numeric_limits<double>::infinity();
  }
  Ids ids(static_cast<size_t>(setting.topk));
  for (size_t e = 0; e < keys.size(); ++e)
    if (int64_t rank = rankOf(keys, e); rank < setting.topk)
      ids[static_cast<size_t>(rank)] = e;
  return ids;
}

Numbers weigh(const Setting &setting, const Numbers &logits, const Ids &ids) {
  Numbers scores = scoresOf(setting, logits), weights;
  for (size_t e : ids)
    weights.push_back(scores[e]);
  if (setting.score == kRouterSoftmax && !setting.isOfAll)
    weights = softmaxOf(weights);
  if (setting.score != kRouterSoftmax && setting.topk > 1) {
    double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double &weight : weights)
      weight /= sum + 1e-20;
  }
  for (double &weight : weights)
    weight *= setting.scale;
  return weights;
}

void setAttrs(Attrs &attrs, const Setting &setting) {
  attrs.score = setting.score;
  attrs.pre_softmax = setting.isOfAll;
  attrs.topk = setting.topk;
  attrs.expert_groups = setting.groups;
  attrs.group_topk = setting.groupTopk;
  attrs.scale = setting.scale;
}

constexpr int64_t kRows = 40;

Numbers rowOf(const Array &array, int64_t t) {
  auto cols = static_cast<ptrdiff_t>(array.shape.back());
  auto begin = array.values.begin() + static_cast<ptrdiff_t>(t) * cols;
  return Numbers(begin, begin + cols);
}

std::vector<Array> route(const Setting &setting, const Array &logits, const Array &bias) {
  KernelRun run("router_topk");
  setAttrs(run.attrs, setting);
  run.in(logits);
  if (setting.hasBias)
    run.in(bias);
  int64_t rows = logits.numel() / setting.experts;
  run.out(DType::I32, {rows, setting.topk}).out(DType::F32, {rows, setting.topk});
  return run.run();
}

TEST(RouterTopk, ChoosesAndWeighsByItsFormula) {
  for (const Setting &setting : kSettings) {
    Array logits = randoms(DType::F32, {4, kRows / 4, setting.experts}, 1, 3);
    Array bias = randoms(DType::F32, {setting.experts}, 2, 0.5);
    std::vector<Array> got = route(setting, logits, bias);
    Numbers ids, weights;
    for (int64_t t = 0; t < kRows; ++t) {
      Numbers row = rowOf(logits, t);
      Ids chosen = choose(setting, row, bias.values);
      Numbers wanted = weigh(setting, row, chosen);
      ids.insert(ids.end(), chosen.begin(), chosen.end());
      weights.insert(weights.end(), wanted.begin(), wanted.end());
    }
    EXPECT_EQ(got[0].values, ids) << setting.name;
    expectClose(got[1], weights, {1e-7, 2}, setting.name);
  }
}

TEST(RouterTopk, GradientIsThatOfTheWeightsOfThoseChosen) {
  for (const Setting &setting : kSettings) {
    Array logits = randoms(DType::F32, {kRows, setting.experts}, 3, 3);
    Array bias = randoms(DType::F32, {setting.experts}, 4, 0.5);
    Array dweights = randoms(DType::F32, {kRows, setting.topk}, 5);
    Array ids = route(setting, logits, bias)[0];
    KernelRun run("router_topk_bwd");
    setAttrs(run.attrs, setting);
    run.in(dweights).in(logits).in(ids).out(DType::F32, logits.shape);
    Array got = run.run()[0];
    Numbers want;
    for (int64_t t = 0; t < kRows; ++t) {
      Numbers row = rowOf(ids, t), gradient = rowOf(dweights, t);
      Ids chosen(row.begin(), row.end());
      Numbers wanted = numericGradient(rowOf(logits, t), [&](const Numbers &x) {
        return inner(gradient, weigh(setting, x, chosen));
      });
      want.insert(want.end(), wanted.begin(), wanted.end());
    }
    expectClose(got, want, {1e-6, 2}, setting.name);
  }
}

/// If scores are equal, the smaller index is chosen, for groups too. Logits with equal scores count
/// as equal.
TEST(RouterTopk, TiesGoToTheSmallerIndex) {
  Setting plain = {"", kRouterSoftmax, false, 4, 2, 0, 0, false, 1};
  Array logits = array(DType::F32, {3, 4}, {1, 1, 1, 1, 0, 2, 1, 2, -1, 3, 5, 3});
  EXPECT_EQ(route(plain, logits, {})[0].values, (Numbers{0, 1, 1, 3, 2, 1}));
  Setting full = {"", kRouterSigmoid, false, 4, 2, 0, 0, false, 1};
  EXPECT_EQ(route(full, array(DType::F32, {1, 4}, {-1, 50, 60, 70}), {})[0].values,
            (Numbers{1, 2}));
  Setting groups = {"", kRouterSoftmax, false, 6, 2, 3, 2, false, 1};
  EXPECT_EQ(route(groups, array(DType::F32, {1, 6}, {0, 1, 2, 1, 2, 0}), {})[0].values,
            (Numbers{2, 4}));
  EXPECT_EQ(route(groups, array(DType::F32, {1, 6}, {0, 1, 1, 0, 0, 1}), {})[0].values,
            (Numbers{1, 2}));
}

/// A row's NaN is chosen, so that its loss shows it.
TEST(RouterTopk, NaNComesFirst) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  Setting setting = {"", kRouterSoftmax, false, 4, 2, 0, 0, false, 1};
  std::vector<Array> got = route(setting, array(DType::F32, {1, 4}, {1, 9, nan, 2}), {});
  EXPECT_EQ(got[0].values, (Numbers{2, 1}));
  EXPECT_TRUE(std::isnan(got[1][0]));
}

/// An expert that is chosen because of the bias is weighted by its logit.
TEST(RouterTopk, ABiasSelectsAndDoesNotWeigh) {
  Setting setting = {"", kRouterSigmoid, false, 3, 2, 0, 0, true, 1};
  Array logits = array(DType::F32, {1, 3}, {2, 1, -3});
  std::vector<Array> got = route(setting, logits, array(DType::F32, {3}, {0, -1, 4}));
  EXPECT_EQ(got[0].values, (Numbers{2, 0}));
  double low = 1 / (1 + std::exp(3)), high = 1 / (1 + std::exp(-2));
  expectClose(got[1], {low / (low + high), high / (low + high)}, {1e-7, 2}, "weights");
}

/// If all scores are 0, the weights are 0, not NaN.
TEST(RouterTopk, ScoresOfZeroAreNoNaN) {
  Setting setting = {"", kRouterSqrtSoftplus, false, 3, 2, 0, 0, false, 1};
  Array logits = constant(DType::F32, {1, 3}, -2e4);
  EXPECT_EQ(route(setting, logits, {})[1].values, (Numbers{0, 0}));
  KernelRun run("router_topk_bwd");
  setAttrs(run.attrs, setting);
  run.in(constant(DType::F32, {1, 2}, 1)).in(logits).in(array(DType::I32, {1, 2}, {0, 1}));
  run.out(DType::F32, {1, 3});
  EXPECT_EQ(run.run()[0].values, (Numbers{0, 0, 0}));
}

// ---- router_sinkhorn ----

std::vector<Array> routeBySinkhorn(const Array &logits, int64_t topk) {
  KernelRun run("router_sinkhorn");
  run.attrs.topk = topk, run.attrs.pre_softmax = true;
  run.attrs.score = topk == 1 ? kRouterSigmoid : kRouterSoftmax;
  run.in(logits).out(DType::I32, {logits.shape[0], topk}).out(DType::F32, {logits.shape[0], topk});
  return run.run();
}

/// exp(logits) times factors of rows and of columns, by the formula in Ops.def.
Numbers balance(const Array &logits, int steps) {
  auto cols = static_cast<size_t>(logits.shape[1]), rows = logits.values.size() / cols;
  Numbers numbers, ofRows(rows), ofColumns(cols, 1);
  for (double logit : logits.values)
    numbers.push_back(std::exp(logit));
  for (int step = 0; step < steps; ++step) {
    Numbers before = ofColumns;
    for (size_t t = 0; t < rows; ++t) {
      double sum = 1e-8;
      for (size_t e = 0; e < cols; ++e)
        sum += before[e] * numbers[t * cols + e];
      ofRows[t] = 1 / (static_cast<double>(rows) * sum);
    }
    double change = 0;
    for (size_t e = 0; e < cols; ++e) {
      double sum = 1e-8;
      for (size_t t = 0; t < rows; ++t)
        sum += ofRows[t] * numbers[t * cols + e];
      ofColumns[e] = 1 / (static_cast<double>(cols) * sum);
      change += std::abs(ofColumns[e] - before[e]) / static_cast<double>(cols);
    }
    if (change <= 1e-4)
      break;
  }
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] *= ofRows[i / cols] * ofColumns[i % cols];
  return numbers;
}

/// The indices of the k largest numbers of each row.
Numbers bestOf(const Numbers &numbers, size_t cols, size_t topk) {
  Numbers ids;
  for (size_t begin = 0; begin < numbers.size(); begin += cols) {
    Numbers row(numbers.begin() + static_cast<ptrdiff_t>(begin),
                numbers.begin() + static_cast<ptrdiff_t>(begin + cols));
    for (size_t k = 0; k < topk; ++k)
      for (size_t e = 0; e < cols; ++e)
        if (rankOf(row, e) == static_cast<int64_t>(k))
          ids.push_back(static_cast<double>(e));
  }
  return ids;
}

/// Similar logits, very different ones, and logits that prefer few experts; more experts than rows,
/// and one expert.
TEST(RouterSinkhorn, ChoosesByBalancedNumbersAndWeighsByLogits) {
  struct {
    int64_t rows, experts, topk;
    double spread, lean;
  } cases[] = {{40, 6, 2, 0.1, 0}, {40, 6, 1, 3, 0}, {200, 16, 4, 8, 0}, {40, 8, 2, 2, 1.5},
               {2, 5, 2, 3, 0},    {4, 9, 3, 3, 0},  {7, 1, 1, 3, 0}};
  for (auto [rows, experts, topk, spread, lean] : cases) {
    Array logits = randoms(DType::F32, {rows, experts}, 11, spread);
    for (size_t i = 0; i < logits.values.size(); ++i)
      logits.values[i] = asFloat(logits[i] - lean * static_cast<double>(i % experts));
    std::string name = std::to_string(rows) + " rows, spread " + std::to_string(spread);
    std::vector<Array> got = routeBySinkhorn(logits, topk);
    Numbers balanced = balance(logits, 1000);
    EXPECT_EQ(got[0].values,
              bestOf(balanced, static_cast<size_t>(experts), static_cast<size_t>(topk)))
        << name;
    Numbers weights;
    Setting setting = {
        "", topk == 1 ? kRouterSigmoid : kRouterSoftmax, true, experts, topk, 0, 0, false, 1};
    for (int64_t t = 0; t < rows; ++t) {
      Numbers row = rowOf(got[0], t);
      for (double weight : weigh(setting, rowOf(logits, t), Ids(row.begin(), row.end())))
        weights.push_back(weight);
    }
    expectClose(got[1], weights, {1e-7, 2}, name);
  }
}

/// All rows prefer one expert, which gets only its share of them.
TEST(RouterSinkhorn, ExpertsHaveEvenShares) {
  constexpr int64_t kMany = 400, kExperts = 4;
  Array logits = randoms(DType::F32, {kMany, kExperts}, 12, 1);
  for (size_t i = 0; i < logits.values.size(); i += kExperts)
    logits.values[i] = asFloat(logits[i] + 5);
  Numbers load(kExperts);
  for (double id : routeBySinkhorn(logits, 1)[0].values)
    ++load[static_cast<size_t>(id)];
  for (double rows : load)
    EXPECT_NEAR(rows, kMany / kExperts, 0.15 * kMany / kExperts);
}

/// If logits differ too much for the factors to converge, the last factors count. With NaN there
/// are no factors: rows are routed by their logits, and NaN is chosen first, so that the loss shows
/// it.
TEST(RouterSinkhorn, EndsWhateverTheLogitsAre) {
  Array far = randoms(DType::F32, {24, 8}, 13, 1);
  for (size_t i = 0; i < far.values.size(); i += 8)
    far.values[i] = asFloat(far[i] + 60);
  EXPECT_EQ(routeBySinkhorn(far, 2)[0].values, bestOf(balance(far, 1000), 8, 2));
  Array huge = array(DType::F32, {2, 3}, {3e38, 0, -3e38, 1, 2, 3});
  for (double id : routeBySinkhorn(huge, 1)[0].values)
    EXPECT_TRUE(id >= 0 && id < 3);
  double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<Array> got = routeBySinkhorn(array(DType::F32, {2, 3}, {1, 2, nan, 5, 9, 7}), 1);
  EXPECT_EQ(got[0].values, (Numbers{2, 1}));
  EXPECT_TRUE(std::isnan(got[1][0]));
}

TEST(RouterSinkhorn, RefusesGroups) {
  KernelRun run("router_sinkhorn");
  run.attrs.topk = 2, run.attrs.expert_groups = 2, run.attrs.group_topk = 2;
  run.in(constant(DType::F32, {2, 4}, 0)).out(DType::I32, {2, 2}).out(DType::F32, {2, 2});
  EXPECT_STREQ(run.refusal(), "experts are in groups");
}

const char *refusalOf(const Setting &setting, int64_t biasOf) {
  static KernelRun run("router_topk");
  run = KernelRun("router_topk");
  setAttrs(run.attrs, setting);
  run.in(constant(DType::F32, {2, setting.experts}, 0));
  if (biasOf > 0)
    run.in(constant(DType::F32, {biasOf}, 0));
  run.out(DType::I32, {2, setting.topk}).out(DType::F32, {2, setting.topk});
  return run.refusal();
}

TEST(RouterTopk, RefusesWhatDoesNotFit) {
  constexpr const char *kGroups =
      "topk, expert_groups and group_topk do not fit the number of experts";
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 4, 5, 0, 0, false, 1}, 0), kGroups);
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 4, 2, 3, 1, false, 1}, 0), kGroups);
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 8, 3, 4, 2, false, 1}, 0), kGroups);
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 8, 4, 4, 1, false, 1}, 0), kGroups);
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 8, 4, 4, 0, false, 1}, 0), kGroups);
  EXPECT_STREQ(refusalOf({"", 3, false, 4, 2, 0, 0, false, 1}, 0),
               "the score is none of the three");
  EXPECT_STREQ(refusalOf({"", kRouterSoftmax, false, 4, 2, 0, 0, true, 1}, 4),
               "softmax has no bias");
  EXPECT_STREQ(refusalOf({"", kRouterSigmoid, false, 4, 2, 0, 0, true, 1}, 3),
               "extents of operands and results do not fit each other");
  EXPECT_EQ(refusalOf({"", kRouterSigmoid, false, 4, 2, 2, 2, true, 1}, 4), nullptr);
}

} // namespace
} // namespace shardc::kernels::test
