// Figures of the summary at the head of a plan.
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/OpInfo.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

const TrafficRow *find(const std::vector<TrafficRow> &rows, OpKind kind) {
  for (const TrafficRow &row : rows)
    if (row.kind == kind)
      return &row;
  return nullptr;
}

TEST(Summary, TrafficCountsMicrobatchesByPredicate) {
  Plan fsdp = parsed(planText("fsdp")), zero = parsed(planText("zero"));
  std::vector<TrafficRow> each = trafficOfStep(fsdp, fsdp.roles[0]),
                          once = trafficOfStep(zero, zero.roles[0]);
  ASSERT_NE(find(each, OpKind::AllGather), nullptr);
  EXPECT_EQ(find(each, OpKind::AllGather)->calls, 8); // two units, four microbatches
  EXPECT_EQ(find(each, OpKind::AllGather)->fullBytes, 8 * 256);
  EXPECT_EQ(find(each, OpKind::AllGather)->sentBytes, 8 * 192); // three of four ranks' shards
  EXPECT_EQ(find(once, OpKind::AllGather)->calls, 1); // evaluation is not part of the step
  EXPECT_EQ(find(once, OpKind::ReduceScatter)->calls, 1);
}

TEST(Summary, AllReduceSendsTwice) {
  Plan plan = parsed(planText("ddp"));
  std::vector<TrafficRow> rows = trafficOfStep(plan, plan.roles[0]);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_EQ(rows[0].sentBytes, 2 * 2 * 128);
  EXPECT_EQ(rows[1].dtype, DType::F64);
}

TEST(Summary, MemoryByPurposeCountsBuffersOnce) {
  Plan plan = parsed(planText("ddp"));
  MemoryByPurpose memory = memoryByPurpose(plan.roles[0]);
  EXPECT_EQ(memory.cells[static_cast<size_t>(Purpose::Params)], 512);
  EXPECT_EQ(memory.cells[static_cast<size_t>(Purpose::Grads)], 512);
  EXPECT_EQ(memory.transient[static_cast<size_t>(Purpose::Grads)], 0); // they live in cells
  EXPECT_EQ(memory.transient[static_cast<size_t>(Purpose::Activations)], 768);
}

TEST(Summary, ACellInsideAnotherCountsWithIt) {
  Plan plan = parsed(planText("zero"));
  EXPECT_EQ(memoryByPurpose(plan.roles[0]).cells[static_cast<size_t>(Purpose::Params)], 384);
}

/// Memory clears of libraries, and both ends of a transfer, are separate nodes.
TEST(Summary, GraphsCountTheNodesOfEachOp) {
  Plan plan = parsed(planText("ddp"));
  Role &role = plan.roles[0];
  Segment *captured = nullptr;
  for (Segment &segment : role.segments)
    if (segment.before == kNone && !segment.ops.empty())
      captured = &segment;
  ASSERT_NE(captured, nullptr);
  Op op = captured->ops.front();
  op.pred = Pred::Always;
  captured->ops.clear();
  int64_t others = graphsOf(plan, role).nodes;
  captured->ops = {op};
  captured->ops.front().kind = OpKind::Add;
  int64_t graphs = graphsOf(plan, role).nodes - others;
  ASSERT_GT(graphs, 0);
  for (auto [kind, nodes] :
       {std::pair(OpKind::View, 0), std::pair(OpKind::MatMul, 2),
        std::pair(OpKind::AttentionQkv, 2), std::pair(OpKind::AttentionQkvBwd, 6),
        std::pair(OpKind::AttentionPart, 6), std::pair(OpKind::Send, 2)}) {
    captured->ops.front().kind = kind;
    EXPECT_EQ(graphsOf(plan, role).nodes - others, nodes * graphs) << opInfo(kind).name;
  }
}

/// A new run fills each tensor separately, also the tensors of a stack, if a rank has a part of
/// them.
TEST(Summary, GraphsCountTheTensorsThatRanksFill) {
  Plan plan = parsed(planText("fsdp")); // two blocks of 64 elements, 16 of each on a rank
  auto nodes = [&] { return graphsOf(plan, plan.roles[0]).nodes; };
  int64_t before = nodes();
  for (Param &param : plan.params)
    param.type = Type::of(DType::F32, {8, 1, 8}), param.stackedRow = 8;
  EXPECT_EQ(nodes(), before + 2);
  for (Param &param : plan.params)
    param.init = InitKind::Zeros;
  EXPECT_EQ(nodes(), before - 2);
}

TEST(Summary, PredicatesByCount) {
  EXPECT_EQ(timesOf(Pred::Always, 5), 5);
  EXPECT_EQ(timesOf(Pred::First, 5), 1);
  EXPECT_EQ(timesOf(Pred::NotLast, 5), 4);
  EXPECT_EQ(timesOf(Pred::NotFirst, 1), 0);
  for (Pred pred : {Pred::within(2, 4), Pred::every(5, 1, 2, 17), Pred::every(4, 3, 3, 11),
                    Pred::every(4, 0, 2, 13)})
    for (int64_t count = 0; count < 25; ++count) {
      int64_t times = 0;
      for (int64_t number = 0; number < count; ++number)
        times += holds(pred, Variant{number, count}) ? 1 : 0;
      EXPECT_EQ(timesOf(pred, count), times) << toString(pred) << " of " << count;
    }
}

TEST(Summary, ThePageIsCommentsOnly) {
  for (const char *name : {"fsdp", "zero", "ddp", "slots", "roles"}) {
    Plan plan = parsed(planText(name));
    plan.name += "line\nbreak";
    plan.job.ddp.dataParallelShardingStrategy = Job::ShardingStrategy::Optim;
    std::vector<std::string> more = {"predicted step 1 ms", "a\nb"};
    std::string page = summary(plan, more);
    for (size_t at = 0; at < page.size(); at = page.find('\n', at) + 1)
      EXPECT_EQ(page.substr(at, 2), "//");
    EXPECT_NE(page.find("// predicted step 1 ms\n"), std::string::npos);
    EXPECT_TRUE(parse(print(plan, page), "test.plan").isOk());
  }
}

TEST(Summary, BytesHaveUnits) {
  EXPECT_EQ(formatBytes(0), "0 B");
  EXPECT_EQ(formatBytes(1023), "1023 B");
  EXPECT_EQ(formatBytes(1536), "1.5 KiB");
  EXPECT_EQ(formatBytes(int64_t{3} << 30), "3.0 GiB");
}

} // namespace
} // namespace shardc::plan
