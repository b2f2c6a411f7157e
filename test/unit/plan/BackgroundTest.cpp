// Background segments: which plans the verifier accepts, and which concurrent ops it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/save/SnapshotPieces.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char *kPlan = R"(shardc.plan 2 placed "background"
needs { backend = host  gpu = ""  device_bytes = 4096 }
mesh { dp = 2 }
groups { dp = [dp] } data dp
stream gather gather
stream copy copy
channel gather group dp stream gather
role all "" {
  arenas { state = 512  work = 256  sym = 0  host = 256 }
  cell @w : f32[16] in state for params at 0
  cell @s : f32[16] in state for params at 128 + 64*dp
  cell @W : f32[32] in state for params at 128
  cell @never : f32[16] in state for params at 256
  cell @stop stop : f32[16] in host for data at 0
  cell @snap.w : f32[16] in host for data at 64
  cell @snap.s : f32[16] in host for data at 128
  segment init init {
    %w = fill : f32[16] params at state 0
    %s = fill : f32[16] params at state 128 + 64*dp
    out @w = %w
    out @s = %s
  }
  segment micro {
    in %w = @w at state 0
    in %s = @s at state 128 + 64*dp
    %W = all_gather %s channel gather : f32[32] params at state 128
    %y = cast %w after %W : f32[16] activations at work 0
    out @W = %W
  }
  segment update update {
    %w = fill {value = 1.0} : f32[16] params at state 0
    %s = fill {value = 1.0} : f32[16] params at state 128 + 64*dp
    out @w = %w
    out @s = %s
  }
  segment snapshot snapshot before update {
    in %w = @w at state 0
    in %s = @s at state 128 + 64*dp
    %part = view %w {offset = 4} : f32[8] params at state 16
    %cw = snapshot %w on copy : f32[16] data at host 64
    %cs = snapshot %s on copy : f32[16] data at host 128
    out @snap.w = %cw
    out @snap.s = %cs
  }
  program {
    start init
    steps 3 {
      run micro
      run update
    }
  }
}
)";

std::string with(const std::string &from, const std::string &to) {
  std::string text = kPlan;
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// The snapshot copies the result of a gather instead of this rank's part.
std::string withTheWhole() {
  std::string text =
      with("in %s = @s at state 128 + 64*dp\n    %part", "in %W = @W at state 128\n    %part");
  for (auto [from, to] :
       {std::pair("%cs = snapshot %s on copy : f32[16]", "%cs = snapshot %W on copy : f32[32]"),
        std::pair("cell @snap.s : f32[16]", "cell @snap.s : f32[32]")})
    text.replace(text.find(from), std::string(from).size(), to);
  return text;
}

/// The first finding with its rule; empty if there is none.
std::string findingOf(const std::string &text) {
  Result<Plan> plan = parse(text, "background.plan");
  if (!plan.isOk())
    return plan.status().message();
  std::vector<Finding> findings = verify(*plan);
  return findings.empty() ? "" : render(*plan, findings[0]);
}

TEST(Background, ReadsBesideWhatLeavesItsBytesAlone) {
  EXPECT_EQ(findingOf(kPlan), "") << "a gather in place leaves this rank's own part";
}

TEST(Background, PrintsAndParsesBack) {
  Result<Plan> plan = parse(kPlan, "background.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  EXPECT_EQ(plan->roles[0].segments[3].before, 2u);
  std::string text = print(*plan);
  EXPECT_THAT(text, HasSubstr("segment snapshot snapshot before update {"));
  EXPECT_EQ(print(*parse(text, "again.plan")), text);
}

TEST(Background, MayFollowTheSegmentBeforeWhichItEnds) {
  std::string late = withTheWhole();
  EXPECT_THAT(findingOf(late), HasSubstr("reads bytes that a concurrent op writes: cell '@W'"));
  std::string order = "run micro\n      run update";
  late.replace(late.find(order), order.size(), "run update\n      run micro");
  EXPECT_EQ(findingOf(late), "") << "nothing runs between a step's end and the next update";
}

constexpr const char *kCast = "%y = cast %w after %W : f32[16] activations at work 0";

TEST(Background, NamesTheBytesAndTheCoordinate) {
  // Writes only the second rank's slot.
  EXPECT_THAT(findingOf(with(kCast, "%y = fill after %W : f32[4] activations at state 208")),
              HasSubstr("writes: cell '@s' in state [208, 224) at index 1 [plan-background]"));
  EXPECT_THAT(
      findingOf(with(kCast, "%y = fill after %W : f32[4] activations at state 256 - 16*dp")),
      HasSubstr("writes: cell '@s' in state [240, 256) at index 1 [plan-background]"));
}

TEST(Background, RunsBesideNothingInALoopOfOneStep) {
  std::string text = with(kCast, "%y = fill after %W : f32[4] activations at state 32");
  EXPECT_THAT(findingOf(text), HasSubstr("reads bytes that a concurrent op writes: cell '@w'"));
  text.replace(text.find("steps 3"), 7, "steps 1");
  EXPECT_EQ(findingOf(text), "");
}

TEST(Background, RunsBesideNoOpThatIsLeftOut) {
  std::string text =
      with(kCast, "%y = fill if not_first after %W : f32[4] activations at state 32");
  text.replace(text.find("segment micro {"), 15, "segment micro train body {");
  EXPECT_EQ(findingOf(text), "") << "the only microbatch is the first";
  text.replace(text.find("run micro"), 9, "run micro 2");
  EXPECT_THAT(findingOf(text), HasSubstr("reads bytes that a concurrent op writes: cell '@w'"));
}

/// Background segments, each with copies into cells of its own, beside cells that the host writes.
std::string manySnapshots(int64_t segments, int64_t copies) {
  std::string cells, texts, arena = std::to_string(64 * segments * copies + 64);
  for (int64_t s = 0; s < segments; ++s) {
    texts += "segment b" + std::to_string(s) + " before a {\nin %w = @w at state 0\n";
    std::string outs;
    for (int64_t i = s * copies; i < (s + 1) * copies; ++i) {
      std::string cell = std::to_string(i), at = std::to_string(64 * i + 64);
      cells += "cell @h" + cell + " : f32[16] in host for data at " + at + "\n";
      texts += "%c" + cell + " = snapshot %w on copy : f32[16] data at host " + at + "\n";
      outs += "out @h" + cell + " = %c" + cell + "\n";
    }
    texts += outs + "}\n";
  }
  return "shardc.plan 2 placed \"many\"\nmesh { dp = 1 }\nstream copy\nrole all \"\" {\narenas { "
         "state = 64 "
         "work = 0 "
         "sym = 0 host = " +
         arena +
         " }\ncell @w : f32[16] in state for params at 0\ncell @stop stop : f32[16] "
         "in host for data at 0\n" +
         cells +
         "segment a {\n%w = fill : f32[16] params at state 0\nout @w = "
         "%w\n}\n" +
         texts + "program { run a steps 2 { run a } }\n}\n";
}

TEST(Background, WorkOnManySegmentsIsNearLinear) {
  Result<Plan> plan = parse(manySnapshots(1000, 64), "many.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  std::vector<Finding> findings = verify(*plan, 20, 1000 * 64 * 32);
  EXPECT_TRUE(findings.empty()) << render(*plan, findings[0]);
}

struct BackgroundCase {
  const char *name, *from, *to, *message;
};

void PrintTo(const BackgroundCase &each, std::ostream *out) { *out << each.name; }

/// The host reads what a snapshot leaves, although no segment reads it.
TEST(Background, WhatIsLeftIsLeftWhole) {
  std::string both = kPlan;
  for (const char *at : {"cell @snap.s : f32[16] in host for data at 128",
                         "%cs = snapshot %s on copy : f32[16] data at host 128"}) {
    size_t found = both.find(at);
    ASSERT_NE(found, std::string::npos);
    both.replace(found + std::string(at).size() - 3, 3, "64 ");
  }
  EXPECT_THAT(findingOf(both),
              HasSubstr("the segment leaves '%cw' in host [64, 128), which by then hold '%cs' "
                        "[plan-reads-from]"));
}

class RefusedBackground : public testing::TestWithParam<BackgroundCase> {};

TEST_P(RefusedBackground, WithTheReason) {
  EXPECT_THAT(findingOf(with(GetParam().from, GetParam().to)), HasSubstr(GetParam().message));
}

const BackgroundCase kCases[] = {
    {"writesBesideReads", kCast, "%y = fill after %W : f32[4] activations at state 32",
     "cell '@w' in state [32, 48) [plan-background]"},
    {"writesBesideWrites", kCast, "%y = fill after %W : f32[4] activations at host 96",
     "the op writes '%y' in arena host"},
    {"readsBesideWrites", "in %s = @s at state 128 + 64*dp\n    %W",
     "in %s = @s at state 128 + 64*dp\n    in %h = @snap.w at host 64\n"
     "    %z = cast %h : f32[16] activations at work 128\n    %W",
     "writes bytes that a concurrent op reads: cell '@snap.w'"},
    {"writesOverTheHost", "cell @stop stop : f32[16] in host for data at 0",
     "cell @stop stop : f32[16] in host for data at 80",
     "the host may write cell '@stop' at any time, but cell '@snap.w' overlaps it"},
    {"computes", "%cw = snapshot %w on copy", "%cw = cast %w on copy",
     "contains 'cast'; only copies, views and packs are allowed"},
    {"sharesAStream", "%cw = snapshot %w on copy", "%cw = snapshot %w on gather",
     "segment 'micro' both use stream gather"},
    {"endsBeforeNothing", "snapshot before update", "snapshot before init",
     "no step runs the segment before which this background segment ends [plan-background]"},
    {"isInTheProgram", "run micro\n", "run micro\n      run snapshot\n", "part of the program"},
    {"isABody", "segment snapshot snapshot before", "segment snapshot other body before",
     "cannot be a microbatch's body"},
    {"namesWhatIsNotThere", "snapshot before update", "snapshot before upgrade", "[plan-name]"},
    {"needsContents", "in %s = @s at state 128 + 64*dp\n    %part",
     "in %s = @never at state 256\n    %part", "[plan-cell]"},
    {"leavesNothing", "    out @snap.w = %cw\n", "",
     "copies '%cw' but does not leave it in a cell [plan-background]"},
    {"fillsOtherCells", "cell @snap.w : f32[16] in host for data at 64",
     "cell @snap.w : f32[16] in work for data at 64",
     "in arena work; it may fill only buffers in arena host"},
    {"changesTheType", "%cw = snapshot %w on copy : f32[16]", "%cw = snapshot %w on copy : f32[8]",
     "[plan-"},
};

/// Edits of the plan "saves" that verifier and oracle refuse because of what a save would contain.
class RefusedSave : public testing::TestWithParam<BackgroundCase> {};

/// Why a run cannot save by the plan's background segments; empty if it can.
std::string saveErrorOf(const std::string &text) {
  Plan plan = test::parsed(text);
  Result<save::StateLayout> layout = save::StateLayout::create(plan);
  EXPECT_TRUE(layout.isOk());
  return std::string(save::snapshotPieces(plan, *layout).status().message());
}

TEST_P(RefusedSave, WithTheReason) {
  std::string text = test::planText("saves");
  ASSERT_EQ(saveErrorOf(text), "");
  text = test::replaced(text, GetParam().from, GetParam().to);
  EXPECT_THAT(saveErrorOf(text), HasSubstr(GetParam().message));
}

constexpr const char *kEndPart =
    "%part = view %w {offset = 36  coef = 64} group dp : f32[36] params at state 272 + 256*dp";

const BackgroundCase kSaves[] = {
    {"copiesTheSameOnEachRank",
     "%part = view %w {coef = 64} group dp : f32[36] params at state 128 + 256*dp",
     "%part = view %w : f32[36] params at state 128",
     "copies cell @w.embedding from byte 0 + 0*index on; 0 bytes from 256*index on are copied "
     "before"},
    {"leavesElementsOut", kEndPart,
     "%part = view %w {offset = 40  coef = 60} group dp : f32[36] params at state 288 + 240*dp",
     "from byte 160 + 240*index on; 144 bytes from 256*index on are copied before"},
    {"copiesTwice", kEndPart,
     "%part = view %w {coef = 64} group dp : f32[36] params at state 128 + 256*dp",
     "from byte 0 + 256*index on; 144 bytes from 256*index on are copied before"},
};

/// The plan with a save in two steps: @w is staged, and copied to the host beside the next steps.
std::string stagedPlan() {
  std::string text =
      with("  cell @stop stop", "  cell @staged.w : f32[16] in work for save_staging at "
                                "64\n  cell @stop stop");
  size_t begin = text.find("  segment snapshot"), end = text.find("  program {");
  return text.replace(begin, end - begin, R"(  segment stage stage before update {
    in %w = @w at state 0
    in %s = @s at state 128 + 64*dp
    %tw = stage %w on copy : f32[16] save_staging at work 64
    %cs = snapshot %s on copy : f32[16] data at host 128
    out @staged.w = %tw
    out @snap.s = %cs
  }
  segment snapshot snapshot before stage {
    in %t = @staged.w at work 64
    %cw = snapshot %t on copy : f32[16] data at host 64
    out @snap.w = %cw
  }
)");
}

TEST(Background, CopiesOnWhatIsStagedBesideAllOfTheSteps) {
  std::string text = stagedPlan();
  EXPECT_EQ(findingOf(text), "");
  Result<Plan> plan = parse(text, "staged.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  EXPECT_EQ(oracle::findBreak(*plan), "");
  text.replace(text.find("steps 3"), 7, "steps 1");
  EXPECT_EQ(findingOf(text), "");
}

/// Steps that use staged bytes, and copies at the wrong time.
class RefusedStaging : public testing::TestWithParam<BackgroundCase> {};

TEST_P(RefusedStaging, WithTheReason) {
  std::string text = test::replaced(stagedPlan(), GetParam().from, GetParam().to);
  EXPECT_THAT(findingOf(text), HasSubstr(GetParam().message));
  if (Result<Plan> plan = parse(text, "staged.plan"); plan.isOk()) {
    EXPECT_NE(oracle::findBreak(*plan), "");
  }
}

const BackgroundCase kStagings[] = {
    {"writtenBesideTheSecondCopy", "segment update update {\n",
     "segment update update {\n    %x = fill : f32[4] activations at work 96\n",
     "writes bytes that a concurrent op also writes: cell '@staged.w' in work [96, 112) "
     "[plan-background]"},
    {"writtenBesideTheFirstCopy", kCast, "%y = fill after %W : f32[4] activations at work 96",
     "concurrent op"},
    {"readInAStep", "in %w = @w at state 0\n    in %s = @s at state 128 + 64*dp\n    %W",
     "in %w = @w at state 0\n    in %s = @s at state 128 + 64*dp\n    in %t = @staged.w at work "
     "64\n"
     "    %z = cast %t : f32[16] activations at work 128\n    %W",
     "writes bytes that a concurrent op reads: cell '@staged.w'"},
    {"copiesStateBesideTheUpdate", "in %t = @staged.w at work 64", "in %t = @w at state 0",
     "reads bytes that a concurrent op writes: cell '@w' in state [0, 64) [plan-background]"},
    {"copiesOnBeforeItIsStaged", "snapshot before stage", "snapshot before update", "[plan-"},
    {"isStagedForNobody", "    in %t = @staged.w at work 64\n    %cw = snapshot %t",
     "    in %t = @s at state 128 + 64*dp\n    %cw = snapshot %t", "[plan-"},
    {"endsBeforeItself", "snapshot before stage", "snapshot before snapshot",
     "no later background segment copies it to the host"},
    {"stagesInState", "in work for save_staging at 64", "in state for save_staging at 320",
     "stages '%tw' in cell '@staged.w' in arena state; it may stage only in arena work"},
    {"isHandedOverOnTheDevice", "%tw = stage %w on copy", "%tw = snapshot %w on copy",
     "in arena work; it may fill only buffers in arena host"},
};

/// A stage op must not overwrite values that no step changes, even if only the update reads them.
TEST(Background, StagesOverNothingThatIsReadLater) {
  std::string text = stagedPlan();
  for (auto [from, to] :
       {std::pair("  cell @stop stop",
                  "  cell @fixed : f32[4] in work for data at 96\n  cell @stop stop"),
        std::pair("  segment update update {\n",
                  "  segment fix prologue {\n    %f = fill : f32[4] data at work "
                  "96\n    out @fixed = %f\n  }\n  segment update update "
                  "{\n    in %f = @fixed at work 96\n    %x = cast %f : "
                  "f32[4] activations at work 0\n"),
        std::pair("    start init\n", "    start init\n    run fix\n")})
    text = test::replaced(std::move(text), from, to);
  EXPECT_THAT(findingOf(text),
              HasSubstr("writes bytes that a concurrent op reads: cell '@fixed' in work "
                        "[96, 112) [plan-background]"));
}

TEST(Background, CopiesOnToBytesOfItsOwn) {
  std::string text = stagedPlan();
  for (auto [from, to] : {std::pair("data at host 64\n", "data at host 128\n"),
                          std::pair("@snap.w : f32[16] in host for data at 64",
                                    "@snap.w : f32[16] in host for data at 128")})
    text = test::replaced(std::move(text), from, to);
  EXPECT_THAT(findingOf(text),
              HasSubstr("cell '@snap.s' is overwritten by background segment 'snapshot' before the "
                        "host reads it [plan-background]"));
  EXPECT_NE(oracle::findBreak(test::parsed(text)), "");
}

TEST(Background, StagesOnlyForAnotherSegment) {
  std::string text = stagedPlan();
  size_t begin = text.find("  segment snapshot"), end = text.find("  program {");
  text.replace(begin, end - begin, "");
  EXPECT_THAT(findingOf(text), HasSubstr("a background segment stages '%tw', but no later "
                                         "background segment copies it to the host"));
}

std::string nameOfBackground(const testing::TestParamInfo<BackgroundCase> &info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Background, RefusedBackground, testing::ValuesIn(kCases),
                         nameOfBackground);
INSTANTIATE_TEST_SUITE_P(Background, RefusedStaging, testing::ValuesIn(kStagings),
                         nameOfBackground);
INSTANTIATE_TEST_SUITE_P(Background, RefusedSave, testing::ValuesIn(kSaves), nameOfBackground);

std::string savesWith(std::initializer_list<std::pair<const char *, const char *>> edits) {
  std::string text = test::planText("saves");
  for (auto [from, to] : edits)
    text = test::replaced(std::move(text), from, to);
  return text;
}

TEST(Background, CopiesAllThatIsSaved) {
  std::string text =
      savesWith({{"    %layer.copy = snapshot %layer on copy : f32[64] data at host 496\n", ""},
                 {"    out @snap.layer = %layer.copy\n", ""},
                 {"  cell @snap.layer : f32[64] in host for data at 496\n", ""}});
  EXPECT_THAT(saveErrorOf(text), HasSubstr("background segments copy 0 of the 256 bytes of cell "
                                           "@w.layer that a rank saves"));
}

TEST(Background, CopiesNothingElseThanState) {
  std::string text = savesWith(
      {{"in %layer = @w.layer at state 672\n    %part", "in %layer = @g1 at work 544\n    %part"}});
  EXPECT_THAT(saveErrorOf(text), HasSubstr("cell @g1 is not state that is saved"));
}

/// The host reads the copies of a segment when all of them have ended.
TEST(Background, CopiesInAnyOrder) {
  std::string text = savesWith(
      {{"  cell @snap.begin : f32[36] in host for data at 352\n",
        "  cell @snap.begin : f32[16] in host for data at 352\n"
        "  cell @snap.more : f32[20] in host for data at 416\n"},
       {"    %part = view %w {coef = 64} group dp : f32[36] params at state 128 + 256*dp\n"
        "    %copy = snapshot %part on copy : f32[36] data at host 352\n",
        "    %more = view %w {offset = 16  coef = 64} group dp : f32[20] params at state 192 + "
        "256*dp\n"
        "    %more.copy = snapshot %more on copy : f32[20] data at host 416\n"
        "    %part = view %w {coef = 64} group dp : f32[16] params at state 128 + 256*dp\n"
        "    %copy = snapshot %part on copy : f32[16] data at host 352\n"},
       {"    out @snap.begin = %copy\n",
        "    out @snap.begin = %copy\n    out @snap.more = %more.copy\n"}});
  EXPECT_EQ(saveErrorOf(text), "");
}

} // namespace
} // namespace shardc::plan
