// Pipelines that the verifier accepts, and pipelines that it refuses.
#include <algorithm>

#include <gtest/gtest.h>

#include "Compare.h"
#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "test/unit/exec/PipelinePlan.h"
#include "test/unit/support/Long.h"

namespace shardc::plan {
namespace {

using shardc::test::PipelineOptions;
using shardc::test::pipelinePlanText;
using test::expectRefused;
using test::parsed;

Plan pipeline(int stages, int microbatches) {
  return parsed(pipelinePlanText({.stages = stages, .microbatches = microbatches, .steps = 2}));
}

Segment &segmentOf(Plan &plan, size_t role, SegmentKind kind) {
  return plan.roles[role].segments[findSegment(plan.roles[role], kind)];
}

/// The n-th op of a kind in the segment.
Op &opOf(Segment &segment, OpKind kind, size_t n = 0) {
  for (Op &op : segment.ops)
    if (op.kind == kind && n-- == 0)
      return op;
  ADD_FAILURE() << "no such op";
  return segment.ops.front();
}

Cell &cellOf(Role &role, std::string_view name) {
  return *std::ranges::find(role.cells, name, &Cell::name);
}

TEST(Pipeline, IsAcceptedForAnyStagesAndMicrobatches) {
  for (int stages : {1, 2, 3})
    for (int microbatches : {1, 2, 3, 4, 7}) {
      Plan plan = pipeline(stages, microbatches);
      std::string once = print(plan);
      EXPECT_EQ(print(parsed(once)), once);
      std::vector<Finding> findings = verify(plan);
      for (const Finding &finding : findings)
        ADD_FAILURE() << stages << " stages, " << microbatches
                      << " microbatches: " << render(plan, finding);
    }
}

/// A small pipeline without data-parallel ranks, which would only make runs longer.
Plan small(int stages, int microbatches) {
  return parsed(
      pipelinePlanText({.stages = stages, .microbatches = microbatches, .steps = 1, .dp = 1}));
}

TEST(Pipeline, TheOracleFindsNothingWrong) {
  for (auto [stages, microbatches] : {std::pair(1, 2), {2, 1}, {2, 3}, {3, 2}}) {
    Plan plan = small(stages, microbatches);
    EXPECT_TRUE(verify(plan).empty()) << stages << " " << microbatches;
    EXPECT_EQ(oracle::findBreak(plan, {.randomOrders = 4, .seed = 5}), "")
        << stages << " stages, " << microbatches << " microbatches";
  }
}

/// Stages have different numbers of microbatches in flight before their first backward pass, so a
/// deadlock may need a certain number of microbatches.
TEST(Pipeline, StagesMeetForAnyNumberOfMicrobatches) {
  for (int stages : {2, 3})
    for (int ahead = 0; ahead < stages; ++ahead)
      for (int microbatches : {1, std::max(ahead, 1), ahead + 1, 2 * stages + 1})
        EXPECT_TRUE(verify(small(stages, microbatches)).empty()) << stages << " " << microbatches;
}

struct PipelineShape {
  int stages, microbatches, dp;
};

class PipelineAgreement : public testing::TestWithParam<PipelineShape> {};

/// Tries 20 mutations; 1000 with SHARDC_LONG=1.
TEST_P(PipelineAgreement, OfVerifierAndOracleOnMutations) {
  PipelineShape shape = GetParam();
  int64_t count = shardc::test::isLong() ? 1000 : 20;
  oracle::Comparison comparison;
  oracle::compare(
      parsed(pipelinePlanText({.stages = shape.stages,
                               .microbatches = shape.microbatches,
                               .steps = 1,
                               .dp = shape.dp})),
      {.count = count, .randomOrders = 6, .seed = 17, .asksOracle = !shardc::test::kIsSanitized},
      comparison);
  for (const std::string &text : comparison.disagreements)
    ADD_FAILURE() << text;
  EXPECT_EQ(comparison.total(), count);
}

INSTANTIATE_TEST_SUITE_P(Plans, PipelineAgreement,
                         testing::Values(PipelineShape{2, 1, 1}, PipelineShape{2, 2, 1},
                                         PipelineShape{2, 3, 1}, PipelineShape{2, 4, 1},
                                         PipelineShape{2, 2, 2}, PipelineShape{3, 1, 1},
                                         PipelineShape{3, 2, 1}, PipelineShape{3, 3, 1},
                                         PipelineShape{3, 4, 1}, PipelineShape{3, 5, 1},
                                         PipelineShape{1, 3, 1}),
                         [](const auto &info) {
                           return shardc::test::nameOf({.stages = info.param.stages,
                                                        .microbatches = info.param.microbatches,
                                                        .dp = info.param.dp});
                         });

/// Gives rings of the first stage other numbers of slots, at the end of its memory.
void widen(Plan &plan, std::initializer_list<std::pair<const char *, int32_t>> rings) {
  Role &role = plan.roles[0];
  int64_t &arena = role.arenaBytes[static_cast<size_t>(Arena::Work)];
  for (auto [name, slots] : rings) {
    Cell &ring = cellOf(role, name);
    int64_t from = ring.place.offset, to = (arena + 63) / 64 * 64;
    auto follow = [&](Place &place) {
      if (place.slots > 1 && place.offset == from)
        place.slots = slots, place.offset = to;
    };
    for (Segment &segment : role.segments)
      for (Value &value : segment.values)
        follow(value.place);
    follow(ring.place);
    ring.slots = slots;
    arena = to + ring.bytes();
  }
}

TEST(Pipeline, GraphsHaveALimit) {
  Plan plan = pipeline(2, 30'000);
  widen(plan,
        {{"u0", 4093}, {"tokens", 4091}}); // both are prime, so each microbatch has other places
  expectRefused(plan, Rule::Graphs, "the limit is 262144 nodes");
}

/// This holds even if it takes 10^11 microbatches until the same slots are in use again.
TEST(Pipeline, RingsMayHaveAnyNumbersOfSlots) {
  Plan plan = pipeline(2, 3);
  widen(plan, {{"x0", 4093}, {"u0", 4091}, {"tokens", 4079}});
  for (const Finding &finding : verify(plan))
    ADD_FAILURE() << render(plan, finding);
}

/// Expects that verifier and oracle refuse the plan.
void expectBothRefuse(const Plan &plan, Rule rule, std::string_view message) {
  expectRefused(plan, rule, message);
  EXPECT_NE(oracle::findBreak(plan, {.randomOrders = 4, .seed = 5}), "");
}

TEST(Pipeline, AMissingReceiveIsRefused) {
  Plan plan = small(2, 3);
  Op &recv = opOf(segmentOf(plan, 1, SegmentKind::Backward), OpKind::Recv);
  recv.pred = Pred::within(0, 0); // instead of 0 to 1
  expectBothRefuse(plan, Rule::Rendezvous, "deadlocks");
}

TEST(Pipeline, AStageThatRunsAMicrobatchMoreIsRefused) {
  Plan plan = small(3, 4);
  plan.roles[1] = small(3, 5).roles[1];
  expectBothRefuse(plan, Rule::Rendezvous, "deadlocks");
}

TEST(Pipeline, MicrobatchesComeOnce) {
  Plan plan = pipeline(2, 3);
  for (ProgramNode &node : plan.roles[0].program[1].children)
    if (node.kind == ProgramNode::Loop && node.children.size() == 2)
      node.children[0].microbatch->base = 0; // the first microbatch comes twice
  expectRefused(plan, Rule::Program, "runs for microbatch 0");
}

TEST(Pipeline, OrdersThatDeadlockAreRefused) {
  // Each stage sends only after it has received.
  auto withWaits = [](int microbatches) {
    Plan plan = small(2, microbatches);
    for (auto [role, kind] : {std::pair(0, SegmentKind::Forward), {1, SegmentKind::Backward}}) {
      Segment &segment = segmentOf(plan, static_cast<size_t>(role), kind);
      auto isOf = [](OpKind wanted) {
        return [wanted](const Op &op) { return op.kind == wanted; };
      };
      auto recv = std::ranges::find_if(segment.ops, isOf(OpKind::Recv));
      auto send = std::ranges::find_if(segment.ops, isOf(OpKind::Send));
      if (recv == segment.ops.end())
        continue;
      // The receive comes first in the text, and the send waits for it.
      auto from = static_cast<uint32_t>(recv - segment.ops.begin());
      auto to = static_cast<uint32_t>(send - segment.ops.begin());
      if (from > to) {
        std::rotate(send, recv, recv + 1);
        for (uint32_t i = 0; i < segment.ops.size(); ++i) {
          for (ValueId result : segment.ops[i].results)
            segment.values[result].def = i;
          for (uint32_t &wait : segment.ops[i].waits)
            wait = wait >= to && wait < from ? wait + 1 : wait;
        }
        segment.ops[to + 1].waits.push_back(to);
      }
    }
    return plan;
  };
  expectBothRefuse(withWaits(3), Rule::Rendezvous, "deadlocks");
}

/// Two stages and four microbatches. The last stage receives the input of its next forward pass by
/// the transfer `first` in some microbatches, and by `second`, whose tie is `tie`, in the others.
Plan withChain(const char *first, const char *second, const char *tie) {
  std::string text = pipelinePlanText({.stages = 2, .microbatches = 4, .steps = 1, .dp = 1});
  size_t begin = text.find("    %x0.next = recv"), end = text.find('\n', begin);
  std::string line = text.substr(begin, end - begin);
  size_t pred = line.find("if mb 0 to 2"), type = line.find(" : ");
  std::string next = line.substr(0, pred) + tie + second + line.substr(type);
  line.replace(pred, type - pred, first);
  next.replace(next.find("%x0.next"), 8, "%x0.second");
  text.replace(begin, end - begin, line + "\n" + next);
  size_t out = text.find("out @x0 = %x0.next");
  text.replace(out, 18, "out @x0 = %x0.second");
  return parsed(text);
}

TEST(Pipeline, TransfersMayTakeEachOthersPlace) {
  const char *kTie = "else(0 = %x0.next) ";
  Plan plan = withChain("if mb 0 to 0", "if mb 1 to 2", kTie);
  EXPECT_TRUE(verify(plan).empty());
  EXPECT_EQ(oracle::findBreak(plan, {.randomOrders = 4, .seed = 5}), "");
}

TEST(Pipeline, TwoSendsDoNotMeet) {
  Plan plan = pipeline(2, 2);
  Segment &backward = segmentOf(plan, 1, SegmentKind::Backward);
  Op &send = opOf(backward, OpKind::Send);
  send.channel = 3; // the channel on which it receives
  for (size_t c = 0; c < plan.channels.size(); ++c)
    if (plan.channels[c].name == "up.0")
      send.channel = static_cast<ChannelId>(c);
  EXPECT_FALSE(verify(plan).empty());
}

TEST(Pipeline, BytesOfARingAreItsOwn) {
  Plan plan = pipeline(2, 3);
  Role &role = plan.roles[0];
  Cell &ring = cellOf(role, "u0"), &other = cellOf(role, "g");
  int64_t before = other.place.offset;
  other.place.offset = ring.place.offset + ring.place.stride;
  for (Segment &segment : role.segments)
    for (Value &value : segment.values)
      if (value.place.arena == Arena::Work && value.place.offset == before)
        value.place.offset = other.place.offset;
  expectRefused(plan, Rule::Ring, "which only the ring may use");
}

TEST(Pipeline, APlaceInARingSaysItsSlot) {
  Plan plan = pipeline(2, 3);
  Segment &forward = segmentOf(plan, 0, SegmentKind::Forward);
  for (Value &value : forward.values)
    if (value.place.slots > 1 && value.def != kNone)
      value.place.slots = 1;
  expectRefused(plan, Rule::Ring, "names no slot");
}

TEST(Pipeline, TransfersNeedAPair) {
  Plan plan = pipeline(2, 2);
  Op &send = opOf(segmentOf(plan, 0, SegmentKind::Forward), OpKind::Send);
  send.channel = 0;
  send.group = plan.channels[0].group;
  expectRefused(plan, Rule::Collective, "a transfer needs the channel of a pair");
}

TEST(Pipeline, LoopsAreInStepsAndNameMicrobatches) {
  Plan plan = pipeline(2, 3);
  ProgramNode loop{ProgramNode::Loop, kNone, 2, {}};
  plan.roles[0].program.push_back(loop);
  expectRefused(plan, Rule::Program, "'loop' needs to be inside 'steps'");
  plan = pipeline(2, 3);
  for (ProgramNode &node : plan.roles[0].program[1].children)
    if (node.kind == ProgramNode::Loop)
      node.children[0].microbatch.reset();
  expectRefused(plan, Rule::Program, "without naming its microbatch");
}

} // namespace
} // namespace shardc::plan
