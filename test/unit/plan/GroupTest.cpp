// Groups that blocks, places and views name.
#include <functional>

#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

struct GroupCase {
  const char *name;
  Rule rule;
  const char *plan;
  std::function<void(Plan &)> edit;
  const char *message; ///< a part of the first finding's message
};

void PrintTo(const GroupCase &each, std::ostream *out) { *out << each.name; }

class WrongGroup : public testing::TestWithParam<GroupCase> {};

TEST_P(WrongGroup, IsRefused) {
  Plan plan = parsed(planText(GetParam().plan));
  ASSERT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  GetParam().edit(plan);
  test::expectRefused(plan, GetParam().rule, GetParam().message);
}

std::string nameOfGroupCase(const testing::TestParamInfo<GroupCase> &info) {
  return info.param.name;
}

const GroupCase kGroupCases[] = {
    {"samplesAndPartsAlongOneAxis", Rule::Kind, "mesh",
     [](Plan &p) { p.kindGroup(GroupKind::Tensor) = groupOfKind(p, GroupKind::Data); },
     "of the kind 'data' and group"},
    {"expertsAndTheirCopiesAlongOneAxis", Rule::Kind, "mesh",
     [](Plan &p) {
       p.kindGroup(GroupKind::Expert) = 0;
       p.kindGroup(GroupKind::ExpertData) = 2;
     },
     "of the kind 'expert' and group"},
    {"expertsAndStagesAlongOneAxis", Rule::Kind, "mesh",
     [](Plan &p) { p.kindGroup(GroupKind::Expert) = p.kindGroup(GroupKind::Stages) = 1; },
     "of the kind 'stages' and group"},
    {"instancesBesideTheSamples", Rule::Kind, "mesh",
     [](Plan &p) { p.kindGroup(GroupKind::Outer) = 1; }, "along which ranks read the same samples"},
    {"stateOfUnequalParts", Rule::Parameter, "mesh", [](Plan &p) { p.blocks[0].stateShard = 4; },
     "has shards of state of 4; they need to be equal parts over the 2 ranks of group 'dp'"},
    {"viewThatMovesWithNoGroup", Rule::Index, "parts",
     [](Plan &p) { p.roles[0].segments[1].ops[3].group = -1; }, "but names none"},
    {"viewThatMovesOtherwiseThanItsValue", Rule::Followed, "hybrid",
     [](Plan &p) {
       Segment &eval = p.roles[0].segments.back();
       Op &own = eval.ops[4];
       own.group = eval.values[own.results[0]].place.group = 0;
     },
     "views and packs cut '%own' into more pieces than the verifier follows"},
};

INSTANTIATE_TEST_SUITE_P(Groups, WrongGroup, testing::ValuesIn(kGroupCases), nameOfGroupCase);

/// If a view and its operand both depend on coordinates, its place must name a group with both
/// axes.
TEST(Groups, ViewsOfViewsMoveWithTheGroupOfBothAxes) {
  std::string text = planText("hybrid");
  std::string wrong =
      test::replaced(text, "f32[16] comm at sym 128 + 64*all", "f32[16] comm at sym 128 + 64*dp");
  std::vector<Finding> findings = verify(parsed(wrong));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].message, "'%part' is at sym 128 + 64*dp; as a part of '%half' it needs to "
                                 "be at sym 128 + 64*all");
}

TEST(Groups, OnesOfTheSameAxesAreTheSame) {
  std::string text = test::replaced(planText("hybrid"), "all = [dp, outer] }",
                                    "all = [dp, outer] same = [dp, outer] }");
  text =
      test::replaced(text, "f32[16] comm at sym 128 + 64*all", "f32[16] comm at sym 128 + 64*same");
  EXPECT_TRUE(verify(parsed(text)).empty());
}

/// Two ranges of one zone have places that depend on different groups. The verifier compares all
/// bytes that each range covers on any rank.
TEST(Groups, RangesThatMoveWithOthersAreComparedByAllTheyCover) {
  auto plan = [](int64_t second) {
    return parsed("shardc.plan 2 placed \"t\"\nmesh { dp = 2 outer = 2 }\n"
                  "groups { dp = [dp] outer = [outer] }\nrole r \"w\" {\n"
                  "  arenas { state = 0 work = 512 sym = 0 host = 0 }\n  segment s {\n"
                  "    %a = fill : f32[4] comm at work 0 + 16*dp\n"
                  "    %b = fill : f32[4] comm at work " +
                  std::to_string(second) +
                  " + 16*outer\n"
                  "    %c = add %a, %b : f32[4] comm at work 256\n  }\n  program { run s }\n}\n");
  };
  EXPECT_TRUE(verify(plan(32)).empty());
  EXPECT_FALSE(verify(plan(16)).empty()); // %a and %b overlap on the rank with dp = 1 and outer = 0
}

} // namespace
} // namespace shardc::plan
