// Witnesses of functions that the compiler, runs and the proof share: a mistake in one would be on
// both sides of the comparison. Expected values are computed here, without the tables.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::plan {
namespace {

std::map<AttrKey, double> scalars(Optimizer optimizer, const Job &job) {
  std::map<AttrKey, double> found;
  for (const Scalar &scalar : scalarsOf(optimizer, job))
    EXPECT_TRUE(found.emplace(scalar.key, scalar.value).second);
  return found;
}

TEST(Shared, OptimizersTakeTheirOwnNumbers) {
  using Map = std::map<AttrKey, double>;
  Job job;
  Job::Optimizer &o = job.optimizer;
  o.adamBeta1 = 0.81, o.adamBeta2 = 0.82, o.adamEps = 0.03, o.sgdMomentum = 0.84;
  o.lionBeta1 = 0.85, o.lionBeta2 = 0.86, o.muonMomentum = 0.87, o.muonNesterov = true;
  o.muonNumNsSteps = 7, o.muonExtraScaleFactor = 0.88, o.muonUseSyrk = true;
  EXPECT_EQ(scalars(Optimizer::Adam, job),
            (Map{{AttrKey::beta1, 0.81}, {AttrKey::beta2, 0.82}, {AttrKey::eps, 0.03}}));
  EXPECT_EQ(scalars(Optimizer::Sgd, job), Map());
  EXPECT_EQ(scalars(Optimizer::SgdMomentum, job), (Map{{AttrKey::momentum, 0.84}}));
  EXPECT_EQ(scalars(Optimizer::Lion, job), (Map{{AttrKey::beta1, 0.85}, {AttrKey::beta2, 0.86}}));
  Map muon = scalars(Optimizer::Muon, job);
  EXPECT_EQ(muon[AttrKey::momentum], 0.87);
  EXPECT_EQ(muon[AttrKey::nesterov], 1);
  EXPECT_EQ(muon[AttrKey::ns_steps], 7);
  EXPECT_EQ(muon[AttrKey::extra_scale], 0.88);
  EXPECT_EQ(muon[AttrKey::symmetric], 1);
  for (auto [kind, optimizer] : {std::pair(Job::OptimizerKind::Adam, Optimizer::Adam),
                                 std::pair(Job::OptimizerKind::Lion, Optimizer::Lion),
                                 std::pair(Job::OptimizerKind::Muon, Optimizer::Muon),
                                 std::pair(Job::OptimizerKind::DistMuon, Optimizer::Muon),
                                 std::pair(Job::OptimizerKind::Sgd, Optimizer::SgdMomentum)}) {
    o.optimizer = kind;
    EXPECT_EQ(optimizerOf(job), optimizer);
  }
  o.sgdMomentum = 0;
  EXPECT_EQ(optimizerOf(job), Optimizer::Sgd);
}

TEST(Shared, LossScalesFollowTheJob) {
  Job job;
  job.optimizer.initialLossScale = 1024;
  EXPECT_EQ(scalingOf(job), Scaling::None);
  EXPECT_EQ(firstLossScale(job), 1);
  job.model.fp16 = true;
  EXPECT_EQ(scalingOf(job), Scaling::Dynamic);
  EXPECT_EQ(firstLossScale(job), 1024);
  job.optimizer.lossScale = 64;
  EXPECT_EQ(scalingOf(job), Scaling::Constant);
  EXPECT_EQ(firstLossScale(job), 64);
}

/// The rows that begin in each rank's share, of random parameters, are all rows, each once.
TEST(Shared, SharesOfStateHaveEachRowOnce) {
  std::mt19937 draw(3);
  for (int i = 0; i < 400; ++i) {
    std::vector<int64_t> rows; // first elements
    int64_t numel = 0, longest = 1;
    for (unsigned p = 0; p < 1 + draw() % 5; ++p) {
      const int64_t row = 1 + draw() % 700, count = 1 + draw() % 40;
      longest = std::max(longest, row);
      for (int64_t r = 0; r < count; ++r, numel += row)
        rows.push_back(numel);
    }
    const int64_t ranks = 2 + draw() % 7;
    const StateShare share = stateShareOf(numel, longest, ranks);
    if (!share.isShared())
      continue;
    rows.push_back(numel);
    for (size_t r = 0; r + 1 < rows.size(); ++r) {
      const int64_t rank = std::min(rows[r] / share.step, ranks - 1);
      EXPECT_LE(rows[r + 1], rank * share.step + share.length) << "the rank copies less";
    }
    EXPECT_EQ((ranks - 1) * share.step + share.length, numel);
  }
}

/// Scales of 8-bit weights are numbered in the order of the table, several for a stack.
TEST(Shared, ScalesAreNumberedInOrder) {
  std::mt19937 draw(4);
  Plan plan;
  int64_t next = 0;
  for (size_t p = 0; p < 40; ++p) {
    Param &param = plan.params.emplace_back();
    const bool isKept = draw() % 2 == 0, isStack = draw() % 3 == 0;
    const int64_t tensors = isStack ? 1 + draw() % 4 : 1;
    param.type = isStack ? Type::of(isKept ? DType::F8E4M3 : DType::BF16, {tensors, 4, 8})
                         : Type::of(isKept ? DType::F8E4M3 : DType::BF16, {4, 8});
    param.stackedRow = isStack ? 8 : 0;
    if (isKept)
      EXPECT_EQ(numberOfScale(plan, p), next);
    next += isKept ? tensors : 0;
  }
  EXPECT_EQ(countWeightScales(plan), next);
}

} // namespace
} // namespace shardc::plan
