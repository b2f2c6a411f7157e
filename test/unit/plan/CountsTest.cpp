// Rows whose number is counted at run time: plans in which rows, counts and places match are
// accepted, and plans in which one of them is missing or belongs to others are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::planText;

/// Two sets of groups of rows, which go to the ranks with the matrices and come back.
constexpr const char *kExchanged = R"(shardc.plan 2 sharded "exchanged"
mesh { dp = 2 ep = 2 }
groups { ep = [ep] dp = [dp] }
role all "" {
  segment s {
    %ids = fill : i32[4,2] data
    %x = fill : f32[4,8] data
    %b = fill : f32[3,8,8] data
    %w = fill : f32[4,2] data
    %n, %p = make_runs %ids {bound = 16} : i32[2,3] data, i32[4,2] data
    %n.2, %p.2 = make_runs %ids {bound = 16} : i32[2,3] data, i32[4,2] data
    %y = dispatch %x, %p : f32[16,8] rows %n activations
    %y.2 = dispatch %x, %p.2, %w : f32[16,8] rows %n.2 activations
    %m = all_to_all %n group ep : i32[2,3] data
    %z = all_to_all %y, %n group ep : f32[16,8] rows %m activations
    %each = view %w : f32[8,1] activations
    %flat = view %p : i32[8,1] data
    %v = dispatch %each, %flat : f32[16,1] rows %n activations
    %vz = all_to_all %v, %n group ep : f32[16,1] rows %m activations
    %c = grouped_matmul %z, %b, %m : f32[16,8] rows %m activations
    %u = weighted_swiglu %c, %vz, %m : f32[16,4] rows %m activations
    %a = weighted_quick_geglu %c, %vz, %m : f32[16,4] rows %m activations
    %h = gelu %c : f32[16,8] rows %m activations
    %dw = grouped_matmul_bwd %h, %z, %m : f32[3,8,8] activations
    %back = all_to_all %h, %m group ep : f32[16,8] rows %n activations
    %sum = add %back, %y : f32[16,8] rows %n activations
    %o = combine %sum, %p, %w : f32[4,8] activations
    %o.2 = combine %y.2, %p.2 : f32[4,8] activations
    %g = combine_bwd %y, %o, %p : f32[4,2] activations
    %na = all_gather %n.2 group dp : i32[4,3] data
    %ya = all_gather %y.2 group dp : f32[32,8] rows %na activations
    %ca = grouped_matmul %ya, %b, %na : f32[32,8] rows %na activations
    %ns = shift %n {by = 1} group ep : i32[2,3] data
    %ps = shift %p {by = 1} group ep : i32[4,2] data
    %ys = shift %y {by = 1} group ep : f32[16,8] rows %ns activations
    %os = combine %ys, %ps : f32[4,8] activations
    %yb = shift %ys {by = -1} group ep : f32[16,8] rows %n activations
  }
}
)";

TEST(Counts, OfRowsThatAreExchangedWithThemAreAccepted) {
  Plan plan = parsed(kExchanged);
  test::expectAccepted(plan);
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

/// Rows that are left in a buffer, and sent to another stage, with their counts.
constexpr const char *kHandedOn = R"(shardc.plan 2 sharded "handed-on"
mesh { pp = 2 }
groups { pp = [pp] }
channel down group pp pair 0 1
role head "first" where { pp = 0 to 0 } {
  cell @n : i32[1,3] in work for data
  cell @y : f32[8,8] in work for data
  segment s {
    %ids = fill : i32[4,2] data
    %x = fill : f32[4,8] data
    %n, %p = make_runs %ids {bound = 8} : i32[1,3] data, i32[4,2] data
    %y = dispatch %x, %p : f32[8,8] rows %n activations
    send %n channel down
    send %y channel down
    out @n = %n
    out @y = %y
  }
  segment t {
    in %n = @n
    in %y = @y rows %n
    %g = gelu %y : f32[8,8] rows %n activations
  }
  program {
    run s
    run t
  }
}
role tail "second" where { pp = 1 to 1 } {
  segment s {
    %ids = fill : i32[4,2] data
    %b = fill : f32[3,8,8] data
    %own, %p = make_runs %ids {bound = 8} : i32[1,3] data, i32[4,2] data
    %n = recv channel down : i32[1,3] data
    %y = recv channel down : f32[8,8] rows %n activations
    %c = grouped_matmul %y, %b, %n : f32[8,8] rows %n activations
  }
  program { run s }
}
)";

TEST(Counts, GoThroughBuffersAndTransfers) {
  Plan plan = parsed(kHandedOn);
  test::expectAccepted(plan);
  test::expectRefused(
      parsed(test::replaced(kHandedOn, "grouped_matmul %y, %b, %n", "grouped_matmul %y, %b, %own")),
      Rule::Counts, "'grouped_matmul' takes '%y' with counts of other rows");
  test::expectRefused(parsed(test::replaced(kHandedOn, "    out @n = %n\n",
                                            "    %k = fill : i32[1,3] data\n    out @n = %k\n")),
                      Rule::Counts,
                      "'%y' takes its row counts from '%n', which does not count them");
}

/// One segment leaves rows; another computes rows from them; a third takes both with the same
/// counts.
constexpr const char *kLeftTwice = R"(shardc.plan 2 sharded "left-twice"
mesh { dp = 1 }
role all "all ranks" {
  cell @n : i32[1,3] in work for data
  cell @y : f32[8,8] in work for data
  cell @g : f32[8,8] in work for data
  segment s {
    %ids = fill : i32[4,2] data
    %x = fill : f32[4,8] data
    %n, %p = make_runs %ids {bound = 8} : i32[1,3] data, i32[4,2] data
    %y = dispatch %x, %p : f32[8,8] rows %n activations
    out @n = %n
    out @y = %y
  }
  segment t {
    in %n = @n
    in %y = @y rows %n
    %g = gelu %y : f32[8,8] rows %n activations
    out @g = %g
  }
  segment u {
    in %n = @n
    in %y = @y rows %n
    in %g = @g rows %n
    %z = add %y, %g : f32[8,8] rows %n activations
  }
  program {
    run s
    run t
    run u
  }
}
)";

TEST(Counts, AreThoseOfWhatSegmentsMakeOfRows) {
  Plan plan = parsed(kLeftTwice);
  test::expectAccepted(plan);
  // The segment 't' reads the rows that the run before it left in the cell.
  test::expectRefused(parsed(test::replaced(kLeftTwice, "    %g = gelu %y",
                                            "    in %old = @g rows %n\n    %g = add %y, %old")),
                      Rule::Counts, "'add' takes '%old' with other rows than its own");
}

/// Changes one place of the plan after the other; the rule must refuse each change.
template <typename Change> int expectAllRefused(const char *what, Change change) {
  int count = 0;
  for (size_t at = 0;; ++at) {
    Plan plan = parsed(kExchanged);
    std::optional<bool> isChanged = change(plan.roles[0].segments[0], at);
    if (!isChanged)
      return count;
    if (!*isChanged)
      continue;
    ++count;
    std::vector<Finding> findings = verify(plan);
    EXPECT_FALSE(findings.empty()) << what << " " << at;
    if (!findings.empty()) {
      EXPECT_EQ(ruleId(findings[0].rule), "plan-counts") << what << " " << at;
    }
  }
}

/// Removes the counts of a value. Empty after the last place, false if there is nothing to change.
std::optional<bool> dropRows(Segment &segment, size_t at) {
  if (at >= segment.values.size())
    return std::nullopt;
  bool isCounted = segment.values[at].counts != kNone;
  segment.values[at].counts = kNone;
  return isCounted;
}

/// Replaces the counts of a value by other counts of the segment.
std::optional<bool> replaceRows(Segment &segment, size_t at) {
  size_t values = segment.values.size();
  if (at >= values * values)
    return std::nullopt;
  Value &value = segment.values[at / values];
  auto other = static_cast<ValueId>(at % values);
  bool isCounts =
      segment.values[other].type.dtype == DType::I32 && segment.values[other].def < value.def;
  if (value.counts == kNone || value.counts == other || !isCounts)
    return false;
  value.counts = other;
  return true;
}

/// Replaces the operand with counts or places by another value of its type.
std::optional<bool> replaceOperand(Segment &segment, size_t at) {
  size_t values = segment.values.size();
  if (at >= segment.ops.size() * values)
    return std::nullopt;
  Op &op = segment.ops[at / values];
  auto other = static_cast<ValueId>(at % values);
  const OpFactors &factors = factorsOf(op);
  for (FactorId factor = 0; factor < factors.factorCount; ++factor) {
    if (!factors.isBound(factor))
      continue;
    ValueId &operand = op.operands[*factors.boundBy(factor)];
    if (operand == other || segment.values[other].type != segment.values[operand].type ||
        segment.values[other].def >= at / values)
      return false;
    operand = other;
    return true;
  }
  return false;
}

/// Replaces the counts by which an op leaves out rows by another value of their type.
std::optional<bool> replaceLeftOut(Segment &segment, size_t at) {
  size_t values = segment.values.size();
  if (at >= segment.ops.size() * values)
    return std::nullopt;
  Op &op = segment.ops[at / values];
  auto other = static_cast<ValueId>(at % values);
  std::optional<size_t> by = leavesOutBy(op);
  if (!by || op.operands[*by] == other ||
      segment.values[other].type != segment.values[op.operands[*by]].type ||
      segment.values[other].def >= at / values)
    return false;
  op.operands[*by] = other;
  return true;
}

/// Replaces counted rows by rows with other counts, or with none.
std::optional<bool> replaceCounted(Segment &segment, size_t at) {
  size_t values = segment.values.size();
  if (at >= segment.ops.size() * values)
    return std::nullopt;
  Op &op = segment.ops[at / values];
  auto other = static_cast<ValueId>(at % values);
  for (ValueId &operand : op.operands) {
    const Value &rows = segment.values[operand], &by = segment.values[other];
    if (rows.counts == kNone || operand == other || by.type != rows.type ||
        by.counts == rows.counts || by.def >= at / values)
      continue;
    operand = other;
    return true;
  }
  return false;
}

/// Removes an exchange of rows or counts: its result is replaced by its operand.
std::optional<bool> dropExchange(Segment &segment, size_t at) {
  if (at >= segment.ops.size())
    return std::nullopt;
  const Op exchange = segment.ops[at];
  if (!opInfo(exchange).collective || exchange.kind == OpKind::AllGather)
    return false;
  for (Op &op : segment.ops)
    for (ValueId &operand : op.operands)
      operand = operand == exchange.results[0] ? exchange.operands[0] : operand;
  bool isUsed = false;
  for (Value &value : segment.values)
    if (value.counts == exchange.results[0])
      value.counts = exchange.operands[0], isUsed = true;
  for (const Op &op : segment.ops)
    for (ValueId operand : op.operands)
      isUsed |= operand == exchange.operands[0] && op.kind != exchange.kind;
  return isUsed && exchange.results[0] != segment.ops.back().results[0];
}

TEST(Counts, OfOtherRowsAreRefused) {
  EXPECT_EQ(expectAllRefused("rows without counts", dropRows), 15);
  EXPECT_GT(expectAllRefused("rows by other counts", replaceRows), 30);
  EXPECT_GT(expectAllRefused("other counts or places", replaceOperand), 15);
  EXPECT_GT(expectAllRefused("other rows to leave out", replaceLeftOut), 8);
  EXPECT_GT(expectAllRefused("other rows", replaceCounted), 10);
  EXPECT_GT(expectAllRefused("without an exchange", dropExchange), 4);
}

TEST(Counts, AreDefinedBeforeWhatTheyCount) {
  std::string text =
      test::replaced(kExchanged, "%p : f32[16,8] rows %n ", "%p : f32[16,8] rows %m ");
  EXPECT_THAT(test::parseError(text),
              testing::HasSubstr("value '%m' is not defined before this use"));
  Plan plan = parsed(kExchanged);
  std::vector<Value> &values = plan.roles[0].segments[0].values;
  auto named = [&](std::string_view name) { return std::ranges::find(values, name, &Value::name); };
  named("y")->counts = static_cast<ValueId>(named("m") - values.begin());
  test::expectRefused(plan, Rule::Definition,
                      "'%y' takes its row counts from '%m', which is defined after it");
  named("y")->counts = 999;
  test::expectRefused(plan, Rule::Index, "'%y' takes its row counts from value 999; there are");
}

/// Exchanges are not removed, and so neither are the counts of their rows.
TEST(Counts, StayWhileTheirRowsDo) {
  Plan plan = parsed(kExchanged);
  Segment &segment = plan.roles[0].segments[0];
  removeDeadOps(segment);
  dropUnusedValues(segment);
  test::expectAccepted(plan);
  EXPECT_EQ(std::ranges::count(segment.ops, OpKind::MakeRuns, &Op::kind), 2);
  EXPECT_EQ(std::ranges::count(segment.ops, OpKind::Combine, &Op::kind), 0);
}

struct WrongCounts {
  const char *name;
  std::vector<test::Edit> edits;
  const char *message;
};
void PrintTo(const WrongCounts &each, std::ostream *out) { *out << each.name; }

class RunsPlan : public testing::TestWithParam<WrongCounts> {};

TEST(RunsPlan, IsAccepted) {
  Plan plan = parsed(planText("runs"));
  test::expectAccepted(plan);
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

TEST_P(RunsPlan, WithOtherRowsIsRefused) {
  test::expectRefused(parsed(edited("runs", GetParam().edits)), Rule::Counts, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, RunsPlan,
    testing::Values(
        WrongCounts{"idsForPlaces",
                    {{"%dx = combine %dy, %places", "%dx = combine %dy, %ids"}},
                    "'combine' takes '%ids' as places of rows, which it is not known to be"},
        WrongCounts{"sumOfRows",
                    {{"%n = token_count %mask", "%n = token_count %s"}},
                    "'token_count' needs each row of '%s', of which only counted rows exist"},
        WrongCounts{"lossesOfRows",
                    {{"loss.add %begun, %z, %n", "loss.add %begun, %s, %n"}},
                    "'loss.add' needs each row of '%s', of which only counted rows exist"}),
    [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::plan
