// Rows whose number is counted at run time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

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

TEST(Counts, GoThroughBuffersAndTransfers) { test::expectAccepted(parsed(kHandedOn)); }

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

TEST(RunsPlan, IsAccepted) {
  Plan plan = parsed(planText("runs"));
  test::expectAccepted(plan);
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

} // namespace
} // namespace shardc::plan
