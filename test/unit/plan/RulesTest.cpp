// One broken plan per rule, made from a valid plan; plans that are accepted; the text of findings.
#include <functional>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Limits.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::cellNamed;
using test::parsed;
using test::planText;
using test::replaced;

Segment &micro(Plan &plan) { return plan.roles[0].segments[1]; }

/// The last reduction of the plan "exchange", which also sums squares.
Op &squared(Plan &plan) {
  return *std::ranges::find_if(micro(plan).ops.rbegin(), micro(plan).ops.rend(),
                               [](const Op &op) { return op.kind == OpKind::ReduceScatter; });
}

/// Changes the type of a cell, and of its values at the ends of segments.
void retypeCell(Plan &plan, const char *name, const Type &type) {
  uint32_t cell = cellNamed(plan, name);
  plan.roles[0].cells[cell].type = type;
  for (Segment &segment : plan.roles[0].segments)
    for (const auto *boundaries : {&segment.ins, &segment.outs})
      for (const Segment::Boundary &boundary : *boundaries)
        if (boundary.cell == cell)
          segment.values[boundary.value].type = type;
}

struct Case {
  const char *name;
  Rule rule;
  const char *plan;
  std::function<void(Plan &)> edit;
  const char *message; ///< a part of the first finding's message
};

void PrintTo(const Case &each, std::ostream *out) { *out << each.name; }

class Broken : public testing::TestWithParam<Case> {};

TEST_P(Broken, IsRefusedByItsRule) {
  Plan plan = parsed(planText(GetParam().plan));
  ASSERT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  GetParam().edit(plan);
  test::expectRefused(plan, GetParam().rule, GetParam().message);
}

std::string nameOf(const testing::TestParamInfo<Case> &info) { return info.param.name; }

const std::vector<Case> &kindCases() {
  static const std::vector<Case> cases = {
      {"ringThatIsNoBuffer", Rule::Ring, "zero",
       [](Plan &p) { p.roles[0].cells[cellNamed(p, "master.layers.0")].slots = 2; },
       "ring '@master.layers.0' is of kind 'master'; a ring is a buffer"},
  };
  return cases;
}

const std::vector<Case> &formCases() {
  static const std::vector<Case> cases = {
      {"blockBeyondTheTable", Rule::Index, "fsdp",
       [](Plan &p) { micro(p).ops[1].set(AttrKey::block, int64_t{9}); }, "block 9"},
      {"missingOperand", Rule::Arity, "fsdp", [](Plan &p) { micro(p).ops[7].operands.pop_back(); },
       "'matmul' has 1 operand; it takes (a b bias?)"},
      {"backgroundThatIsABody", Rule::Background, "fsdp", [](Plan &p) { micro(p).before = 1; },
       "cannot be a microbatch's body or part of the program"},
  };
  return cases;
}

const std::vector<Case> &typeCases() {
  static const std::vector<Case> cases = {
      {"innerDimensions", Rule::Shape, "fsdp",
       [](Plan &p) {
         micro(p).values[micro(p).ops[7].operands[1]].type = Type::of(DType::F32, {4, 8});
       },
       "'matmul' needs depth = 8 in operand 'b' by its factors"},
      {"gatherTooLong", Rule::Shape, "fsdp",
       [](Plan &p) {
         micro(p).values[micro(p).ops[1].results[0]].type = Type::of(DType::F32, {128});
       },
       "'all_gather' needs (members elements) = 64 in result 'full' by its factors"},
      {"viewBeyondItsOperand", Rule::Shape, "fsdp",
       [](Plan &p) { micro(p).ops[3].set(AttrKey::offset, int64_t{8}); },
       "'view' takes 64 elements from 8"},
      {"movingViewBeyondItsOperand", Rule::Shape, "fsdp",
       [](Plan &p) {
         micro(p).ops[3].set(AttrKey::coef, int64_t{4});
         micro(p).ops[3].group = 0;
       },
       "4*index"},
      {"packWithoutItsParameters", Rule::Shape, "zero",
       [](Plan &p) { p.roles[0].segments[2].ops[11].operands.pop_back(); }, "'pack' has 1 parts"},
      {"packWithoutParts", Rule::Shape, "zero",
       [](Plan &p) { p.roles[0].segments[2].ops[11].operands.clear(); }, "'pack' has 0 parts"},
      {"packWithoutABlock", Rule::Shape, "zero",
       [](Plan &p) { p.roles[0].segments[2].ops[11].set(AttrKey::block, int64_t{-1}); },
       "'pack' needs a result with as many elements as its parts"},
      {"viewFarBeyondAllOperands", Rule::Attribute, "fsdp",
       [](Plan &p) { micro(p).ops[3].set(AttrKey::offset, std::numeric_limits<int64_t>::max()); },
       "attribute 'offset' is 9223372036854775807; it takes 0 to 4398046511104"},
      {"viewFarBeyondItsOperand", Rule::Shape, "fsdp",
       [](Plan &p) { micro(p).ops[3].set(AttrKey::offset, int64_t{1} << 40); },
       "'view' takes 64 elements from 1099511627776"},
      {"tieOfAnotherType", Rule::Tie, "fsdp",
       [](Plan &p) { micro(p).ops[12].ties[0].value = micro(p).ops[11].operands[0]; },
       "which takes over its buffer, has type"},
      {"tieTwice", Rule::Tie, "fsdp",
       [](Plan &p) { micro(p).ops[12].ties.push_back(micro(p).ops[12].ties[0]); }, "tied twice"},
      {"gatherThatAdds", Rule::Tie, "zero",
       [](Plan &p) { p.roles[0].segments[2].ops[0].ties[0].kind = Tie::Acc; },
       "does not accumulate"},
      {"predicateOutsideABody", Rule::Predicate, "fsdp",
       [](Plan &p) { p.roles[0].segments[2].ops[0].pred = Pred::First; },
       "not a microbatch's body"},
      {"readsWhatIsNotMade", Rule::Predicate, "fsdp",
       [](Plan &p) { micro(p).ops[2].pred = Pred::First; },
       "which this microbatch does not define"},
      {"cellOfAnotherType", Rule::Boundary, "fsdp", [](Plan &p) { micro(p).ins[0].cell = 1; },
       "has type"},
  };
  return cases;
}

const std::vector<Case> &tableCases() {
  static const std::vector<Case> cases = {
      {"parameterBeyondItsBlock", Rule::Parameter, "zero", [](Plan &p) { p.params[1].offset = 92; },
       "ends beyond its block"},
      {"parameterWithoutABlock", Rule::Parameter, "zero", [](Plan &p) { p.params[1].block = -1; },
       "is not in a block; each parameter of a placed plan needs one"},
      {"parametersOverlap", Rule::Parameter, "zero", [](Plan &p) { p.params[1].offset = 56; },
       "overlap in block"},
      {"parameterNotAligned", Rule::Parameter, "zero", [](Plan &p) { p.params[1].offset = 74; },
       "not a multiple of 16"},
      {"rowAcrossShards", Rule::Parameter, "zero",
       [](Plan &p) {
         p.params[0].type = Type::of(DType::F32, {4, 16});
       },
       "cuts a row of 16 elements"},
      {"unevenShards", Rule::Parameter, "zero", [](Plan &p) { p.blocks[0].shard = 20; },
       "need to be equal parts"},
      {"scheduleOfOtherSamples", Rule::Job, "zero",
       [](Plan &p) { p.job.put(JobField::derived_stepSamples, int64_t{8}); },
       "step.begin counts 0 samples in a step; the job's steps have 8"},
      {"skippedStepIsNoNumber", Rule::Job, "zero",
       [](Plan &p) {
         p.job = {{"train.iterations_to_skip", std::vector<std::string>{"3", "4x"}}};
       },
       "'train.iterations_to_skip' has entries that are not whole numbers"},
      {"shardsOverAnotherAxis", Rule::Parameter, "mesh", [](Plan &p) { p.mesh[1].size = 1; },
       "equal parts over the 1 ranks of group 'dp'"},
      {"startBehindARun", Rule::Program, "fsdp",
       [](Plan &p) {
         std::rotate(p.roles[0].program.begin(), p.roles[0].program.begin() + 1,
                     p.roles[0].program.end());
       },
       "'start' needs to come before everything else"},
      {"everyOutsideSteps", Rule::Program, "fsdp",
       [](Plan &p) { p.roles[0].program[1].kind = ProgramNode::Every; },
       "'every' needs to be directly inside"},
      {"runsBehindAnEvery", Rule::Program, "fsdp",
       [](Plan &p) {
         auto &steps = p.roles[0].program[1];
         ProgramNode every = steps.children[0];
         every.kind = ProgramNode::Every, every.count = 1, every.segment = kNone;
         steps.children.insert(steps.children.begin(), every);
       },
       "'every' needs to come after all runs of a step"},
      {"loopsOfOtherLengths", Rule::Program, "roles",
       [](Plan &p) { p.roles[1].program[0].count = 3; }, "their loops differ in length"},
      {"rankWithTwoRoles", Rule::Role, "roles", [](Plan &p) { p.roles[1].where.clear(); },
       "ranks in common"},
      {"rankWithoutRole", Rule::Role, "roles", [](Plan &p) { p.roles.pop_back(); },
       "cover 2 of the mesh's 4 ranks"},
  };
  return cases;
}

/// Cases about squares that are summed where shards are formed.
const std::vector<Case> &squareCases() {
  static const std::vector<Case> cases = {
      {"squaresOfWhatTheLibraryAdds", Rule::Shape, "exchange",
       [](Plan &p) {
         p.channels[static_cast<size_t>(squared(p).channel)].transport = Transport::Nccl;
       },
       "'reduce_scatter' can return a sum of squares only if"},
      {"squaresOfNoBlock", Rule::Shape, "exchange",
       [](Plan &p) { squared(p).set(AttrKey::block, int64_t{-1}); },
       "'reduce_scatter' names no block"},
      {"squaresInTwoNumbers", Rule::Shape, "exchange",
       [](Plan &p) { retypeCell(p, "ss0", Type::of(DType::F64, {2})); },
       "'reduce_scatter' needs 1 in result 'ss'"},
      {"squaresOfDoubles", Rule::Shape, "exchange",
       [](Plan &p) { retypeCell(p, "g0", Type::of(DType::F64, {8})); },
       "a result of f32, bf16 or f16 to square"},
      {"squaresThatTakeOver", Rule::Shape, "exchange",
       [](Plan &p) {
         ValueId before = addLiveIn(micro(p), "before", p.roles[0], cellNamed(p, "ss0"));
         micro(p).values[before].place = micro(p).values[squared(p).results[1]].place;
         squared(p).ties.push_back({Tie::Else, 1, before});
       },
       "a sum of squares without ties"},
  };
  return cases;
}

const std::vector<Case> &orderCases() {
  static const std::vector<Case> cases = {
      {"waitsForAView", Rule::Wait, "fsdp", [](Plan &p) { micro(p).ops[7].waits[0] = 3; },
       "which executes nothing"},
      {"noWaitForTheGather", Rule::Order, "fsdp", [](Plan &p) { micro(p).ops[6].waits.clear(); },
       "reads '%v0' without waiting for it: it is written on stream gather and read on stream "
       "compute"},
      {"readAfterTakingOver", Rule::ReadsFrom, "ddp",
       [](Plan &p) {
         p.roles[0].segments[2].ops[4].operands[2] = p.roles[0].segments[2].ins[1].value;
       },
       "which by then hold"},
      {"collectiveWithoutGroup", Rule::Collective, "fsdp",
       [](Plan &p) { micro(p).ops[1].group = -1; }, "names no group"},
      {"collectiveWithoutChannel", Rule::Collective, "fsdp",
       [](Plan &p) { micro(p).ops[1].channel = kNoChannel; }, "names no channel"},
      {"groupOfAnOrdinaryOp", Rule::Collective, "fsdp", [](Plan &p) { micro(p).ops[7].group = 0; },
       "is not a collective"},
      {"rolesIssueDifferently", Rule::Collective, "roles",
       [](Plan &p) { p.roles[1].segments[0].ops[1].set(AttrKey::average, int64_t{1}); },
       "issue different collectives"},
      {"collectivesWithoutOrder", Rule::CollectiveOrder, "fsdp",
       [](Plan &p) {
         p.streams.push_back({"other"});
         micro(p).ops[2].stream = static_cast<StreamId>(p.streams.size() - 1);
         micro(p).ops[8].waits = {2};
       },
       "are not ordered"},
      {"otherBodiesAreDue", Rule::Rendezvous, "every",
       [](Plan &p) {
         std::vector<ProgramNode> &step = p.roles[1].program[0].children;
         std::swap(step[0].children, step[1].children);
         p.roles[1].segments[0].ops.pop_back();
         p.roles[1].segments[0].values.pop_back();
       },
       "deadlocks"},
      {"partnerThatOnlyStarts", Rule::Rendezvous, "starts",
       [](Plan &p) { p.roles[1].program[0].kind = ProgramNode::Run; },
       "the other members of the group never reach its collective"},
      {"missingPartner", Rule::Rendezvous, "roles",
       [](Plan &p) { p.roles[1].segments[0].ops[3].pred = Pred::Always; }, "deadlocks"},
  };
  return cases;
}

const std::vector<Case> &byteCases() {
  static const std::vector<Case> cases = {
      {"noPlace", Rule::Place, "fsdp", [](Plan &p) { micro(p).values[8].place.placed = false; },
       "has no place"},
      {"viewElsewhere", Rule::Place, "fsdp",
       [](Plan &p) { micro(p).values[micro(p).ops[3].results[0]].place.offset = 256; },
       "as a part of '%W0' it needs to be at sym 0"},
      {"cellElsewhere", Rule::Place, "fsdp",
       [](Plan &p) { p.roles[0].cells[0].place.offset = 256; }, "its cell '@step' is at"},
      {"oddOffset", Rule::Alignment, "fsdp",
       [](Plan &p) { micro(p).values[micro(p).ops[6].results[0]].place.offset = 4; },
       "not a multiple of 16"},
      {"beyondTheArena", Rule::Arena, "fsdp", [](Plan &p) { p.roles[0].arenaBytes[1] = 2160; },
       "ends beyond its arena of 2160"},
      {"beyondTheArenaOnTheLastRank", Rule::Arena, "zero",
       [](Plan &p) { p.roles[0].arenaBytes[2] = 368; }, "ends beyond its arena"},
      {"resultOverOperand", Rule::Overlap, "fsdp",
       [](Plan &p) { micro(p).values[micro(p).ops[9].results[0]].place.offset = 512; },
       "overlaps an operand"},
      {"overwrittenBeforeUse", Rule::ReadsFrom, "fsdp",
       [](Plan &p) { micro(p).values[micro(p).ops[8].results[0]].place.offset = 0; },
       "reads '%x' from work [0, 256), which by then hold '%h1'"},
      {"overwrittenInPart", Rule::ReadsFrom, "fsdp",
       [](Plan &p) { micro(p).values[micro(p).ops[13].results[0]].place.offset = 240; },
       "reads '%x' from work [240, 256)"},
      {"slotNotYetFree", Rule::Race, "slots",
       [](Plan &p) { p.roles[0].segments[1].ops[6].waits.clear(); },
       "without waiting for an op that reads these bytes"},
      {"nothingFillsTheCell", Rule::Cell, "fsdp",
       [](Plan &p) { p.roles[0].segments[0].outs.pop_back(); },
       "the op reads cell '@w.layers.1' in state [192, 256), which has no content at this point"},
      {"addsToNothing", Rule::Cell, "fsdp",
       [](Plan &p) { micro(p).ops[12].ties[0].pred = Pred::Always; }, "cell '@g1'"},
      {"cellLostOnTheWay", Rule::Cell, "fsdp",
       [](Plan &p) {
         micro(p).values[micro(p).ops[9].results[0]].place = {true, Arena::State, 128, 0};
       },
       "the op reads cell '@w.layers.0' in state [128, 192), which has no content at this point"},
  };
  return cases;
}

/// The op of the plan "offload" that computes the value, and the value.
Op &opOf(Plan &plan, const char *name) {
  return *std::ranges::find_if(micro(plan).ops, [&](const Op &op) {
    return micro(plan).values[op.results[0]].name == name;
  });
}
Place &placeOf(Plan &plan, const char *name) {
  return micro(plan).values[opOf(plan, name).results[0]].place;
}

const std::vector<Case> &offloadCases() {
  static const std::vector<Case> cases = {
      {"bytesUsedBeforeTheirCopy", Rule::Race, "offload",
       [](Plan &p) { opOf(p, "z").waits.clear(); },
       "the op writes '%z' to work [384, 448) without waiting for an op that reads these bytes"},
      {"backBeforeItsCopy", Rule::Order, "offload",
       [](Plan &p) { opOf(p, "x.back").waits.erase(opOf(p, "x.back").waits.begin()); },
       "the op reads '%x.host' without waiting for it: it is written on stream to_host and read on "
       "stream to_device"},
      {"computeReadsTheHost", Rule::Host, "offload",
       [](Plan &p) { opOf(p, "dx").operands[0] = opOf(p, "x.host").results[0]; },
       "'add' reads '%x.host' in arena host; only 'to_device' may read copies there"},
      {"copyOverTheFeed", Rule::Host, "offload", [](Plan &p) { placeOf(p, "x.host").offset = 288; },
       "'%x.host' overlaps cell '@feed', which the host may write at any time, in host [288, 304)"},
      {"ringReadBeforeItIsFilled", Rule::Cell, "offload",
       [](Plan &p) {
         std::vector<ProgramNode> &steps = p.roles[0].program[1].children;
         std::swap(steps[1], steps[3]);
       },
       "cell '@kept'"},
      {"copyOnTheDevice", Rule::Host, "offload",
       [](Plan &p) {
         placeOf(p, "x.host") = {true, Arena::Work, 832, 0};
       },
       "'to_host' writes '%x.host' in arena work; it needs to be in arena host"},
      {"backOnTheHost", Rule::Host, "offload",
       [](Plan &p) {
         placeOf(p, "dx") = {true, Arena::Host, 592, 0};
       },
       "the op writes '%dx' in arena host, where only the host, background segments and 'to_host' "
       "write"},
      {"copyInTheBackground", Rule::Background, "saves",
       [](Plan &p) {
         for (Segment &segment : p.roles[0].segments)
           for (Op &op : segment.ops)
             op.kind = op.kind == OpKind::Snapshot ? OpKind::ToHost : op.kind;
       },
       "a background segment contains 'to_host'"},
  };
  return cases;
}

const std::vector<Case> &hostCases() {
  static const std::vector<Case> cases = {
      {"opWritesInTheHostsArena", Rule::Host, "ddp",
       [](Plan &p) {
         p.roles[0].arenaBytes[3] = 512;
         micro(p).values[micro(p).ops[3].results[0]].place = {true, Arena::Host, 16, 0};
       },
       "the op writes '%x' in arena host"},
      {"cellThatNobodyFills", Rule::Cell, "ddp",
       [](Plan &p) { p.roles[0].cells[0].kind = CellKind::Buffer; },
       "which has no content at this point"},
      {"cellsOfTheHostOverlap", Rule::Host, "ddp",
       [](Plan &p) {
         p.roles[0].cells.push_back(p.roles[0].cells[0]);
         p.roles[0].cells.back().name = "eval_feed";
         p.roles[0].cells.back().kind = CellKind::EvalFeed;
       },
       "the host may write cell '@stop' at any time, but cell '@eval_feed' overlaps it in host [0, "
       "4)"},
      {"stepStateElsewhere", Rule::Host, "mesh",
       [](Plan &p) {
         p.roles[0].cells[1].kind = CellKind::EvalFeed;
         p.roles[0].cells[1].of = -1;
       },
       "cell '@w.layers.0' is in arena state; the host needs it in arena host"},
      {"stepStateOfAnotherSize", Rule::Host, "mesh",
       [](Plan &p) {
         p.roles[0].cells[0].kind = CellKind::Buffer;
         p.roles[0].cells[1].kind = CellKind::Step;
         p.roles[0].cells[1].of = -1;
       },
       "cell '@w.layers.0' has 32 bytes; a step state has 128"},
      {"startFillsWhatNoCheckpointHolds", Rule::Cell, "slots",
       [](Plan &p) { p.roles[0].cells[3].kind = CellKind::WeightShard; },
       "the op reads cell '@w.b3'"},
      {"stepStateThatNothingFills", Rule::Cell, "slots",
       [](Plan &p) {
         p.roles[0].cells.push_back({"step",
                                     CellKind::Step,
                                     -1,
                                     Type::of(DType::U8, {128}),
                                     1,
                                     Arena::State,
                                     Purpose::Step,
                                     {true, Arena::State, 512, 0}});
         p.roles[0].arenaBytes[0] += 128;
       },
       "the host reads cell '@step' in state [512, 640) at the end of a step, but it has no "
       "content"},
      {"momentsThatAreNotKept", Rule::Cell, "zero",
       [](Plan &p) {
         p.roles[0].segments[3].outs.erase(p.roles[0].segments[3].outs.begin() + 2);
         p.roles[0].program[2].count = 1;
       },
       "a save reads cell '@m.layers.0' in state [224, 320) at the end of a step"},
  };
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kind, Broken, testing::ValuesIn(kindCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Form, Broken, testing::ValuesIn(formCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Types, Broken, testing::ValuesIn(typeCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Tables, Broken, testing::ValuesIn(tableCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Squares, Broken, testing::ValuesIn(squareCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Order, Broken, testing::ValuesIn(orderCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Bytes, Broken, testing::ValuesIn(byteCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Host, Broken, testing::ValuesIn(hostCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Offload, Broken, testing::ValuesIn(offloadCases()), nameOf);

TEST(Rules, EveryRuleHasACase) {
  std::set<Rule> covered;
  for (const auto *cases : {&formCases(), &kindCases(), &typeCases(), &tableCases(), &orderCases(),
                            &byteCases(), &hostCases()})
    for (const Case &each : *cases)
      covered.insert(each.rule);
  // Cases of these are in CountsTest.cpp, StepsTest.cpp, SplitTest.cpp, GroupTest.cpp,
  // PipelineTest.cpp and test/plan/specification.test:
  covered.insert({Rule::Definition, Rule::Kind, Rule::State, Rule::Split, Rule::Followed,
                  Rule::Ring, Rule::Graphs, Rule::Specification});
  for (int rule = 0; rule < kRuleCount; ++rule)
    EXPECT_TRUE(covered.count(static_cast<Rule>(rule))) << ruleId(static_cast<Rule>(rule));
}

TEST(Rules, EveryRuleIsExplained) {
  Result<std::string> page = readFile(SHARDC_PLAN_PAGE);
  ASSERT_TRUE(page.isOk()) << page.status().message();
  for (int rule = 0; rule < kRuleCount; ++rule)
    EXPECT_NE(page->find(fmt::format("`{}`", ruleId(static_cast<Rule>(rule)))), std::string::npos)
        << ruleId(static_cast<Rule>(rule));
}

TEST(Rules, RuleIdsAreDistinct) {
  std::set<std::string_view> ids;
  for (int rule = 0; rule < kRuleCount; ++rule)
    EXPECT_TRUE(ids.insert(ruleId(static_cast<Rule>(rule))).second);
}

TEST(Levels, PlansOfAllLevelsNeedARole) {
  for (Level level : {Level::Logical, Level::Sharded, Level::Scheduled, Level::Placed}) {
    Plan plan;
    plan.level = level;
    test::expectRefused(plan, Rule::Role, "the roles cover 0 of the mesh's 1 ranks");
    plan.roles.push_back({.name = "all"});
    EXPECT_TRUE(verify(plan).empty());
  }
}

TEST(Levels, LowerLevelsKnowNoPlaces) {
  for (Level level : {Level::Logical, Level::Sharded, Level::Scheduled}) {
    Plan plan = parsed(planText("fsdp"));
    plan.level = level;
    for (Value &value : micro(plan).values)
      value.place = {};
    EXPECT_TRUE(verify(plan).empty());
  }
}

TEST(Waits, AWaitThatOthersImplyMayGo) {
  std::string text = replaced(planText("fsdp"), "%h1 = matmul %h0, %v1 after %W1",
                              "%h1 = matmul %h0, %v1 after %W0, %W1");
  EXPECT_TRUE(verify(parsed(text)).empty());
  Plan plan = parsed(planText("slots"));
  // W1 follows W0 on its stream, so an op that waits for W1 has also waited for W0.
  plan.roles[0].segments[1].ops[5].waits = {2, 1};
  EXPECT_TRUE(verify(plan).empty());
}

TEST(Programs, EveryIsFollowedInEachStepThatDiffers) {
  Plan plan = parsed(planText("every"));
  for (Role &role : plan.roles)
    role.program[0].count = int64_t{1} << 40;
  EXPECT_TRUE(verify(plan).empty());
  Role &tail = plan.roles[1];
  tail.program[0].children[1].children[0].segment = static_cast<uint32_t>(tail.segments.size());
  tail.segments.emplace_back().name = "none"; // without the ops of every third step
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].rule, Rule::Rendezvous);
  for (Role &role : plan.roles)
    role.program[0].count = 2; // it is never due
  EXPECT_TRUE(verify(plan).empty());
  for (Role &role : plan.roles) {
    role.program[0].count = int64_t{1} << 40;
    role.program[0].children.clear();
    for (int64_t prime : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31})
      role.program[0].children.push_back({ProgramNode::Every, kNone, prime, {}});
  }
  EXPECT_NE(verify(plan)[0].message.find("more than 256 different steps"), std::string::npos);
}

TEST(Findings, FindingsStopAtTheLimit) {
  Plan plan = parsed(planText("fsdp"));
  for (Op &op : micro(plan).ops)
    op.attrs = {{AttrKey::block, {.i = 50}}};
  EXPECT_EQ(verify(plan, 3).size(), 3u);
}

TEST(Findings, AFindingNamesOpBytesAndRecipeLine) {
  Plan plan = parsed(planText("fsdp"));
  micro(plan).values[micro(plan).ops[8].results[0]].place.offset = 0;
  Finding finding = verify(plan)[0];
  EXPECT_EQ(finding.value, "x");
  EXPECT_EQ(
      render(plan, finding),
      "fsdp.recipe:3:5: error: the op reads '%x' from work [0, 256), which by then hold '%h1' "
      "[plan-reads-from]\n  role all, segment micro (first microbatch), op 14: %dw0 = matmul %x, "
      "%dh0 {trans_a = true} : f32[8,8] grads at work 1280 loc 0\nfsdp.recipe:3:5: note: '%h1' "
      "overwrites it here [plan-reads-from]\n  role all, segment micro, op 8: %h1 = matmul %h0, "
      "%v1 after %W1 : f32[8,8] activations at work 0 loc 0");
  EXPECT_EQ(verified(plan).code(), StatusCode::InvalidInput);
}

TEST(Findings, FindingsAboutCellsNameOpAndRecipeLine) {
  Plan plan = parsed(planText("fsdp"));
  plan.roles[0].cells[1].place.offset = 256; // @w.layers.0
  EXPECT_EQ(render(plan, verify(plan)[0]),
            "fsdp.recipe:8:7: error: '%w0' is at state 128; its cell '@w.layers.0' is at "
            "state 256 [plan-place]\n  role all, segment init, op 1: %w0 = init_block "
            "{block = 0  seed = 7} unit layers.0 : f32[16] params at state 128 loc 1");
  plan.roles[0].cells[1].place.offset = 512;
  EXPECT_EQ(render(plan, verify(plan)[0]).substr(0, 48),
            "fsdp.recipe:8:7: error: cell '@w.layers.0' of 64");
  plan = parsed(planText("fsdp"));
  plan.roles[0].cells[1].type = Type::of(DType::F32, {8});
  EXPECT_NE(render(plan, verify(plan)[0])
                .find("'%w0' has type f32[16]; its cell '@w.layers.0' has type f32[8]"),
            std::string::npos);
}

TEST(Limits, HostileNumbersDoNotOverflow) {
  for (int64_t offset :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    Plan plan = parsed(planText("zero"));
    for (Segment &segment : plan.roles[0].segments)
      for (Value &value : segment.values)
        value.place.offset = value.place.coef = offset;
    EXPECT_FALSE(verify(plan).empty());
    plan = parsed(planText("zero"));
    plan.roles[0].segments[2].ops[1].set(AttrKey::offset, offset).set(AttrKey::coef, offset);
    EXPECT_FALSE(verify(plan).empty());
  }
}

} // namespace
} // namespace shardc::plan
