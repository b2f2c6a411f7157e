// Liveness of cells: the places at which a later segment of the program needs their contents.
#include "compiler/passes/Liveness.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"

namespace shardc::passes {
namespace {

/// A role with cells @g (gradients), @w (weights) and @s (a sum), and the segments and program of a
/// test.
class LivenessTest : public testing::Test {
protected:
  void analyse(std::string_view body) {
    Result<plan::Plan> parsed = plan::parse(
        "shardc.plan 2 scheduled \"t\"\nrole all \"\" {\n cell @g : f32[4] in work for grads\n"
        " cell @w : f32[4] in state for params\n cell @s : f32[4] in work for step\n" +
            std::string(body) + "}\n",
        "t");
    ASSERT_TRUE(parsed.isOk()) << parsed.status().message();
    plan_ = *parsed;
    liveness_ = cellLiveness(plan_.roles[0]);
  }

  /// The ends of the segment at which the cell is live: `start`, `end`, `both` or `dead`.
  std::string where(const char *segment, const char *cell) const {
    auto indexOf = [](const auto &table, std::string_view name) {
      return static_cast<size_t>(
          std::ranges::find_if(table, [&](const auto &each) { return each.name == name; }) -
          table.begin());
    };
    const CellLiveness &at = liveness_[indexOf(plan_.roles[0].segments, segment)];
    size_t index = indexOf(plan_.roles[0].cells, cell);
    bool start = at.atStart[index] != 0, end = at.atEnd[index] != 0;
    return start && end ? "both" : start ? "start" : end ? "end" : "dead";
  }

  plan::Plan plan_;
  std::vector<CellLiveness> liveness_;
};

constexpr const char *kUpdate =
    " segment update update {\n in %g = @g\n in %w = @w\n %n = add %g, %w : f32[4] params\n"
    " out @w = %n\n }\n";

TEST_F(LivenessTest, AGradientLivesFromItsBodyToTheUpdate) {
  analyse(std::string(" segment micro train body {\n in %w = @w\n %g = gelu %w : f32[4] grads\n "
                      "out @g = %g\n }\n") +
          kUpdate + " program { steps 3 { run micro 1  run update } }\n");
  EXPECT_EQ(where("micro", "g"), "end");
  EXPECT_EQ(where("update", "g"), "start");
  EXPECT_EQ(where("micro", "w"), "both");
  EXPECT_EQ(where("update", "w"), "both") << "the next step reads what the update leaves";
  EXPECT_EQ(where("micro", "s"), "dead");
}

constexpr const char *kSumming =
    " segment micro train body {\n in %w = @w\n in %s = @g\n"
    " %g = gelu %w acc(0 = %s if not_first) : f32[4] grads\n out @g = %g\n }\n";

TEST_F(LivenessTest, ASumOverMicrobatchesLivesAtTheirStartToo) {
  analyse(std::string(kSumming) + kUpdate + " program { steps 3 { run micro 3  run update } }\n");
  EXPECT_EQ(where("micro", "g"), "both");
}

TEST_F(LivenessTest, OneMicrobatchReadsNoEarlierSum) {
  analyse(std::string(kSumming) + kUpdate + " program { steps 3 { run micro 1  run update } }\n");
  EXPECT_EQ(where("micro", "g"), "end");
  EXPECT_EQ(where("update", "g"), "start");
}

TEST_F(LivenessTest, ASkippedOpHandsItsCellOn) {
  // Only the first microbatch writes the cell; the others leave it unchanged.
  analyse(" segment micro train body {\n in %w = @w\n in %s = @s\n %t = gelu %w else(0 = %s) if "
          "first : "
          "f32[4] step\n"
          " %u = gelu %t : f32[4] activations\n out @s = %t\n }\n"
          " program { steps 3 { run micro 2 } }\n");
  EXPECT_EQ(where("micro", "s"), "both");
}

TEST_F(LivenessTest, WhatOnlySomeStepsReadIsKeptInAll) {
  analyse(" segment a {\n %g = fill : f32[4] grads\n out @g = %g\n }\n segment b {\n }\n"
          " segment c {\n in %g = @g\n %s = gelu %g : f32[4] step\n out @s = %s\n }\n"
          " program { run a  steps 9 { run b  every 3 { run c } } }\n");
  EXPECT_EQ(where("a", "g"), "end");
  EXPECT_EQ(where("b", "g"), "both");
  EXPECT_EQ(where("c", "g"), "both") << "evaluation comes again";
}

TEST_F(LivenessTest, ReadingThroughAViewCounts) {
  analyse(" segment a {\n in %g = @g\n %v = view %g : f32[2] grads\n %s = gelu %v : f32[2] "
          "activations\n }\n"
          " program { run a }\n");
  EXPECT_EQ(where("a", "g"), "start");
}

TEST_F(LivenessTest, AViewThatNobodyReadsDoesNotCount) {
  analyse(" segment a {\n in %g = @g\n %v = view %g : f32[2] grads\n }\n program { run a }\n");
  EXPECT_EQ(where("a", "g"), "dead");
}

TEST_F(LivenessTest, EachOfManyCellsLivesByItself) {
  std::string cells, writes = " segment micro train body {\n in %w = @w\n", outs;
  for (int i = 0; i < 130; ++i) {
    cells += fmt::format(" cell @c{} : f32[4] in work for grads\n", i);
    if (i % 3 == 0)
      continue;
    writes += fmt::format(" %v{} = gelu %w : f32[4] grads\n", i);
    outs += fmt::format(" out @c{0} = %v{0}\n", i);
  }
  analyse(cells + writes + outs + " }\n segment update update {\n in %x = @c64\n in %y = @c129\n" +
          " in %w = @w\n %s = add %x, %y : f32[4] grads\n %n = add %s, %w : f32[4] params\n" +
          " out @w = %n\n }\n program { steps 3 { run micro 1  run update } }\n");
  EXPECT_EQ(where("micro", "c64"), "end");
  EXPECT_EQ(where("update", "c64"), "start");
  EXPECT_EQ(where("update", "c129"), "both") << "nothing writes it";
  EXPECT_EQ(where("micro", "c65"), "dead");
  EXPECT_EQ(where("micro", "c63"), "dead");
}

} // namespace
} // namespace shardc::passes
