// The verifier's work is bounded, also for many cells that share bytes and for many states of
// cells.
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Limits.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

/// Two roles that meet in many groups, one after the other, a million times.
std::string manyMeetings() {
  constexpr int kGroups = 64;
  std::string groups, channels, ops = "    %y0 = fill : f32[8] comm at work 0\n", roles;
  for (int i = 0; i < kGroups; ++i) {
    groups += fmt::format("g{} = [pp] ", i);
    channels += fmt::format("channel c{0} group g{0}\n", i);
    ops += fmt::format("    %y{} = all_reduce %y{} channel c{} : f32[8] comm at work 0\n", i + 1, i,
                       i);
  }
  for (int r = 0; r < 2; ++r)
    roles += fmt::format("role r{0} \"w\" where {{ pp = {0} to {0} }} {{\n  arenas {{ state = 0 "
                         "work = 32 sym = 0 host = 0 }}\n  segment s {{\n{1}  }}\n  program {{ run "
                         "s 1000000 }}\n}}\n",
                         r, ops);
  return "shardc.plan 2 placed \"t\"\nmesh { pp = 2 }\ngroups { " + groups + "}\n" + channels +
         roles;
}

TEST(Work, IsBounded) {
  std::vector<Finding> findings = verify(parsed(manyMeetings()));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(
      findings[0].message.find("visits of bytes, cells and collectives, the verifier's limit"),
      std::string::npos)
      << findings[0].message;
}

/// Verifies with ever higher limits of visits, up to what the plan needs; each limit may end the
/// work anywhere.
void expectBoundedWork(const Plan &plan, const std::string &name) {
  uint64_t enough = 1;
  while (!verify(plan, 20, enough).empty())
    enough *= 2;
  const uint64_t step = enough / 2000 + 1;
  for (uint64_t visits = 0; visits < enough; visits += visits < 1000 ? 1 : step) {
    std::vector<Finding> findings = verify(plan, 20, visits);
    if (findings.empty())
      continue;
    EXPECT_EQ(findings.size(), 1u) << name << " in " << visits;
    EXPECT_EQ(findings[0].message, fmt::format("checking the plan takes more than {} visits of "
                                               "bytes, cells and collectives, the verifier's limit",
                                               visits))
        << name;
  }
}

TEST(Work, MayExceedItsBoundAnywhere) {
  for (const char *name : {"fsdp", "zero", "ddp", "slots", "roles", "mesh", "every", "exchange",
                           "parts", "starts", "split"})
    expectBoundedWork(parsed(planText(name)), name);
}

TEST(Work, OnCellsThatShareBytesIsBounded) {
  constexpr int64_t kCells = 40000;
  Plan plan = parsed(
      "shardc.plan 2 placed \"t\"\nmesh { dp = 1 } groups { dp = [dp] } data dp\nrole r "
      "\"w\" {\n  arenas { state = "
      "0 work = 640000 sym = 0 host = 0 }\n  segment s {\n    %x = fill : f32[4] comm at work "
      "639984\n  }\n  program { run s }\n}\n");
  for (int64_t i = 0; i < kCells; ++i)
    plan.roles[0].cells.push_back({fmt::format("c{}", i),
                                   CellKind::Buffer,
                                   -1,
                                   Type::of(DType::F32, {4 * (kCells - i)}),
                                   1,
                                   Arena::Work,
                                   Purpose::Comm,
                                   {true, Arena::Work, i * 16, 0}});
  std::vector<Finding> findings = verify(plan);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].message,
              testing::HasSubstr("visits of bytes, cells and collectives, the verifier's limit"));
}

/// The first segment overwrites a part of @c0 that nobody reads; each other segment fills a cell.
std::string manyCellsAndSegments(int64_t cells, int64_t segments) {
  std::string text = fmt::format("shardc.plan 2 placed \"t\"\nmesh {{ dp = 2 }} groups {{ dp = "
                                 "[dp] }} data dp\nrole r \"w\" {{\n  arenas "
                                 "{{ state = 0 work = {} sym = 0 host = 0 }}\n",
                                 64 * cells);
  for (int64_t c = 0; c < cells; ++c)
    text += fmt::format("  cell @c{} : f32[16] in work for data at {}\n", c, 64 * c);
  text +=
      "  segment first {\n    %g = fill : f32[16] data at work 0\n    %t = fill : f32[4] data at "
      "work 0\n    out @c0 = %g\n  }\n  segment part {\n    in %g = @c0 at work 0\n    %v = view "
      "%g {offset = 4} : f32[4] data at work 16\n    %y = gelu %v : f32[4] data at work 64\n  }\n";
  std::string program = "run first run part ";
  for (int64_t s = 0; s < segments; ++s) {
    text +=
        fmt::format("  segment s{0} {{\n    %x = fill : f32[16] data at work {1}\n    out @c{0} = "
                    "%x\n  }}\n",
                    s, 64 * s);
    program += fmt::format("run s{} ", s);
  }
  return text + "  program { " + program + "}\n}\n";
}

TEST(Work, FollowsWhatSegmentsTouch) {
  Plan plan = parsed(manyCellsAndSegments(60000, 1000));
  EXPECT_TRUE(verify(plan, 20, 1 << 22).empty()) << "not cells times segments";
  expectBoundedWork(parsed(manyCellsAndSegments(100, 4)), "many");
}

} // namespace
} // namespace shardc::plan
