// Predictions for expert rows of which only some are valid: products, gated units and exchanges
// cost as much as the expected rows, for any capacity.
#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/model/OpCost.h"
#include "compiler/predict/StepTime.h"
#include "runtime/plan/Factors.h"

namespace shardc::predict {
namespace {

using plan::OpKind;

constexpr int64_t kRanks = 8, kTopk = 8, kExperts = 128, kTokens = 4096, kHidden = 2048;
/// Number of rows that each rank gets if all experts get equally many.
constexpr int64_t kExpected = kTokens * kTopk;

/// A plan with rows in one slot per rank, with capacity for `factor` times an even share, or for
/// all rows if `factor` is 0. All experts have equally many rows.
plan::Plan planOf(double factor, int64_t nodes = 1) {
  plan::Plan plan;
  plan.job = {{"derived.nodes", nodes},
              {"model.num_moe_experts", kExperts},
              {"model.moe_router_topk", kTopk},
              {"model.expert_model_parallel_size", kRanks},
              {"model.moe_predicted_imbalance", 1.0}};
  if (factor > 0)
    plan.job.model.moeExpertRankCapacityFactor = factor;
  plan.mesh = {{"ep", kRanks}};
  plan.groups = {{"ep", {0}}};
  plan.streams.push_back({"compute"});
  plan.channels.push_back({"ep", 0, plan::Transport::Nccl, 0, 1});
  plan::Segment &segment = plan.roles.emplace_back().segments.emplace_back();
  int64_t even = kTokens * kTopk / kRanks, most = kTokens * kTopk; // rows from one rank to another
  int64_t capacity = factor > 0 ? std::min(static_cast<int64_t>(factor * even), most) : most;
  auto add = [&](plan::Type type, bool isCounted = true) {
    plan::Value &value = segment.values.emplace_back();
    value.type = type;
    value.counts = isCounted ? 0 : plan::kNone;
  };
  add(plan::Type::of(DType::I32, {kRanks, kExperts / kRanks}), false);
  add(plan::Type::of(DType::BF16, {kRanks * capacity, kHidden}));
  add(plan::Type::of(DType::BF16, {kExperts / kRanks, kHidden, kHidden}), false);
  add(plan::Type::of(DType::F32, {kRanks * capacity, 1}));
  add(plan::Type::of(DType::BF16, {kRanks * capacity, kHidden}));
  add(plan::Type::of(DType::BF16, {kRanks * capacity, kHidden / 2}));
  return plan;
}

plan::Op opOf(OpKind kind, std::vector<plan::ValueId> operands, plan::ValueId result) {
  plan::Op op;
  op.kind = kind;
  op.operands = std::move(operands);
  op.results = {result};
  return op;
}

plan::Op exchangeOf(bool isCounted) {
  plan::Op op = opOf(OpKind::AllToAll, {1}, 4);
  if (isCounted)
    op.operands.push_back(0);
  op.group = op.channel = 0;
  return op;
}

model::OpCost costOf(const plan::Plan &plan, const plan::Op &op) {
  return model::costOf(plan, plan.roles[0].segments[0], op);
}

double secondsOf(const plan::Plan &plan, const plan::Op &op) {
  return timeOf(device(Gpu::H200), plan, plan.roles[0].segments[0], op);
}

TEST(ExpertRows, ProductsAreOfThoseThatAreExpected) {
  plan::Op product = opOf(OpKind::GroupedMatMul, {1, 2, 0}, 4);
  double wanted = 2.0 * kExpected * kHidden * kHidden;
  for (double factor : {0.0, 1.0, 1.25, 2.0, 8.0, 100.0})
    EXPECT_NEAR(costOf(planOf(factor), product).flops, wanted, 1e-9 * wanted) << factor;
}

/// The capacity of a slot is at most the number of rows that one rank can send to another.
TEST(ExpertRows, AreNoMoreThanThereIsRoomFor) {
  EXPECT_EQ(model::expectedShareOfRows(planOf(0)), 1.0 / kRanks);
  EXPECT_EQ(model::expectedShareOfRows(planOf(2)), 0.5);
  EXPECT_EQ(model::expectedShareOfRows(planOf(100)), 1.0 / kRanks);
  EXPECT_EQ(model::expectedShareOfRows(planOf(0.5)), 1) << "all that there is room for";
  EXPECT_EQ(model::expectedShareOfRows({}), 1) << "no experts";
}

TEST(ExpertRows, UnitsLeaveOutTheOthersByTheirCounts) {
  plan::Op all = opOf(OpKind::WeightedSwiGlu, {1, 3}, 5), some = all;
  some.operands.push_back(0);
  plan::Plan plan = planOf(0);
  EXPECT_FALSE(plan::leavesRowsOut(all));
  EXPECT_TRUE(plan::leavesRowsOut(some));
  EXPECT_NEAR(costOf(plan, some).flops, costOf(plan, all).flops / kRanks, 1);
  EXPECT_LT(costOf(plan, some).bytes, costOf(plan, all).bytes / (kRanks - 1));
  EXPECT_LT(secondsOf(plan, some), secondsOf(plan, all) / (kRanks - 1));
}

/// Exchanges by kernels inside a machine move only valid rows; exchanges between machines move
/// whole slots.
TEST(ExpertRows, ExchangesMoveThoseThatAreThereInsideOfAMachine) {
  EXPECT_LT(secondsOf(planOf(0), exchangeOf(true)), secondsOf(planOf(0), exchangeOf(false)) / 4);
  EXPECT_NEAR(secondsOf(planOf(0), exchangeOf(true)), secondsOf(planOf(1), exchangeOf(false)), 1e-9)
      << "room for an even share";
  EXPECT_NEAR(secondsOf(planOf(0), exchangeOf(true)), secondsOf(planOf(2), exchangeOf(true)), 1e-9);
  EXPECT_EQ(secondsOf(planOf(0, 2), exchangeOf(true)), secondsOf(planOf(0, 2), exchangeOf(false)));
}

/// A step waits for the rank whose experts have the most rows. If a rank has many experts, their
/// differences average out.
TEST(ExpertRows, AreThoseOfTheBusiestRank) {
  plan::Plan plan = planOf(0);
  EXPECT_EQ(model::busiestShareOfRows(plan), model::expectedShareOfRows(plan));
  plan::Op product = opOf(OpKind::GroupedMatMul, {1, 2, 0}, 4);
  double even = secondsOf(plan, product), evenExchange = secondsOf(plan, exchangeOf(true));
  plan.job.model.moePredictedImbalance = 2;
  double share = model::busiestShareOfRows(plan) / model::expectedShareOfRows(plan);
  EXPECT_GT(share, 1.05);
  EXPECT_LT(share, 1.3);
  EXPECT_NEAR(secondsOf(plan, product), even * share, even * 0.03) << "but for what begins it";
  EXPECT_GT(secondsOf(plan, exchangeOf(true)), evenExchange);
  EXPECT_EQ(costOf(plan, product).flops, costOf(planOf(0), product).flops) << "of all ranks";

  // One expert per rank, so the imbalance of experts is that of ranks.
  plan.job.model.numMoeExperts = kRanks;
  plan.job.model.moeRouterTopk = 1;
  EXPECT_NEAR(model::busiestShareOfRows(plan) / model::expectedShareOfRows(plan), 2, 1e-12);
  plan.job.model.moePredictedImbalance = 100;
  EXPECT_EQ(model::busiestShareOfRows(plan), 1) << "all that there is room for";
  plan.job.model.expertModelParallelSize = 1;
  EXPECT_EQ(model::busiestShareOfRows(plan), model::expectedShareOfRows(plan))
      << "nobody to wait for";
}

} // namespace
} // namespace shardc::predict
