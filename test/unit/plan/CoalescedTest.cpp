// The gathers that are issued together.
#include "runtime/plan/Execution.h"

#include <gtest/gtest.h>

#include "TestPlans.h"

namespace shardc::plan {
namespace {

using Together = std::vector<uint32_t>;

/// The bodies of fsdp2.plan: step.begin, two gathers of layers.0, one of layers.1, three views.
class Coalesced : public testing::Test {
protected:
  Segment &micro() { return plan_.roles[0].segments[1]; }
  Together at(size_t op) { return issuedTogether(plan_, micro())[op]; }

  Plan plan_ = test::parsed(test::planText("fsdp2"));
};

TEST_F(Coalesced, GathersOfOneUnitThatStandNextToEachOther) {
  std::vector<Together> together = issuedTogether(plan_, micro());
  ASSERT_EQ(together.size(), micro().ops.size());
  EXPECT_EQ(together[0], Together{0});
  EXPECT_EQ(together[1], (Together{1, 2}));
  EXPECT_EQ(together[2], Together{});
  for (uint32_t i = 3; i < together.size(); ++i)
    EXPECT_EQ(together[i], Together{i}) << "reductions and other ops stay by themselves";
}

TEST_F(Coalesced, AlsoBehindAliases) {
  std::swap(micro().ops[2], micro().ops[3]);
  EXPECT_EQ(at(1), Together{1}) << "another unit's gather stands between";
  std::swap(micro().ops[2], micro().ops[4]); // a view
  EXPECT_EQ(at(1), (Together{1, 3}));
}

TEST_F(Coalesced, NotWithAnythingThatDiffers) {
  using Change = void (*)(Op &);
  for (Change change : {
           Change([](Op &op) { op.unit = 1; }),
           Change([](Op &op) { op.pred = Pred::First; }),
           Change([](Op &op) { op.channel = 2; }),
           Change([](Op &op) { op.stream = kComputeStream; }),
       }) {
    Op before = micro().ops[2];
    change(micro().ops[2]);
    EXPECT_EQ(at(1), Together{1});
    micro().ops[2] = before;
  }
  EXPECT_EQ(at(1), (Together{1, 2}));
}

TEST_F(Coalesced, OnlyWhatKernelsOfNcclMove) {
  plan_.channels[0].transport = Transport::Ce;
  EXPECT_EQ(at(1), Together{1});
}

/// A buffer may be reused after a gather of its content, which must have ended then.
TEST_F(Coalesced, NotWhereOneWritesWhatAnotherReadsOrWrites) {
  std::vector<Value> &values = micro().values;
  const Op &first = micro().ops[1], &second = micro().ops[2];
  auto reset = [&, from = values[first.operands[0]].place, to = values[first.results[0]].place] {
    values[first.operands[0]].place = from;
    values[first.results[0]].place = to;
  };
  values[first.operands[0]].place = values[second.results[0]].place;
  EXPECT_EQ(at(1), Together{1}) << "the second writes what the first reads";
  reset();
  values[first.results[0]].place = values[second.operands[0]].place;
  EXPECT_EQ(at(1), Together{1}) << "the second reads what the first writes";
  reset();
  values[first.results[0]].place = values[second.results[0]].place;
  EXPECT_EQ(at(1), Together{1}) << "both write the same";
  reset();
  Place &from = values[first.operands[0]].place = values[second.results[0]].place;
  from.offset -= 2 * 96; // the operand is the shard of the last of three ranks
  EXPECT_EQ(at(1), (Together{1, 2}));
  from.coef = 96, from.group = 0;
  EXPECT_EQ(at(1), Together{1});
  reset();
  EXPECT_EQ(at(1), (Together{1, 2}));
}

} // namespace
} // namespace shardc::plan
