// The verifier skips iterations of loops that do the same as earlier ones. Its findings must equal
// those of a verifier that follows every iteration.
#include <gtest/gtest.h>

#include "Mutate.h"
#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "test/unit/exec/PipelinePlan.h"
#include "test/unit/support/Long.h"

namespace shardc::plan {
namespace {

constexpr size_t kFindings = 20;

std::vector<std::string> findingsOf(const Plan &plan, Iterations turns) {
  std::vector<std::string> texts;
  for (const Finding &finding : verify(plan, kFindings, kVisitsMax, turns))
    texts.push_back(render(plan, finding));
  return texts;
}

struct Shape {
  int stages, microbatches, dp;
};

class TurnsAgreement : public testing::TestWithParam<Shape> {};

TEST_P(TurnsAgreement, OnMutations) {
  Shape shape = GetParam();
  const Plan plan = test::parsed(shardc::test::pipelinePlanText(
      {.stages = shape.stages, .microbatches = shape.microbatches, .steps = 3, .dp = shape.dp}));
  EXPECT_EQ(findingsOf(plan, Iterations::Different), std::vector<std::string>());
  std::mt19937_64 random(29);
  int broken = 0, count = shardc::test::isLong() ? 3000 : 60;
  for (int made = 0; made < count;) {
    Plan changed = plan;
    auto draw = [&] {
      return oracle::mutate(
          changed, static_cast<oracle::Mutation>(random() % oracle::kMutationCount), random);
    };
    std::string what = draw();
    if (random() % 4 == 0)
      what += "; " + draw();
    if (what.size() <= 2)
      continue;
    ++made;
    std::vector<std::string> all = findingsOf(changed, Iterations::All);
    broken += all.empty() ? 0 : 1;
    ASSERT_EQ(findingsOf(changed, Iterations::Different), all) << what;
  }
  EXPECT_GT(broken, count / 4);
}

INSTANTIATE_TEST_SUITE_P(Plans, TurnsAgreement,
                         testing::Values(Shape{1, 1, 1}, Shape{1, 12, 2}, Shape{2, 1, 1},
                                         Shape{2, 2, 2}, Shape{2, 3, 1}, Shape{2, 5, 1},
                                         Shape{2, 40, 2}, Shape{3, 1, 1}, Shape{3, 2, 1},
                                         Shape{3, 3, 2}, Shape{3, 4, 1}, Shape{3, 7, 1},
                                         Shape{3, 12, 1}, Shape{3, 40, 1}),
                         [](const auto &info) {
                           return shardc::test::nameOf({.stages = info.param.stages,
                                                        .microbatches = info.param.microbatches,
                                                        .dp = info.param.dp});
                         });

} // namespace
} // namespace shardc::plan
