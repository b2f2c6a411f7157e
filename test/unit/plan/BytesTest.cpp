// Bytes at places that depend on the rank's coordinate, states of cells along the program, and
// buffers that consist of other buffers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "oracle/Oracle.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;
using test::replaced;

std::string firstFinding(const Plan &plan) {
  std::vector<Finding> findings = verify(plan);
  return findings.empty() ? "" : render(plan, findings[0]);
}

/// A placed plan over `dp` ranks with one segment of these ops.
std::string over(int64_t dp, std::string_view ops) {
  return "shardc.plan 2 placed \"t\"\nmesh { dp = " + std::to_string(dp) +
         " }\ngroups { dp = [dp] } data dp\nstream copy\nchannel gather group dp\n"
         "role r \"w\" {\n  arenas { state = 1048576 work = 1048576 sym "
         "= 1048576 host = 0 }\n" +
         "  segment s {\n" + std::string(ops) + "  }\n  program { run s }\n}\n";
}

TEST(MovingPlaces, AGatherInPlaceKeepsTheOwnPart) {
  std::string ops = "%w = fill : f32[4] comm at sym 0 + 16*dp\n"
                    "%W = all_gather %w channel gather : f32[64] comm at sym 0\n"
                    "%a = gelu %w : f32[4] comm at work 0\n"
                    "%b = gelu %W : f32[64] comm at work 16\n";
  EXPECT_EQ(firstFinding(parsed(over(16, ops))), "");
}

TEST(MovingPlaces, AnAxisOfOneRankDoesNotMatterToAGatherInPlace) {
  std::string ops = "%w = fill : f32[4] comm at sym 0 + 16*dp\n"
                    "%W = all_gather %w channel gather : f32[16] comm at sym 0\n"
                    "%b = gelu %W : f32[16] comm at work 16\n";
  auto over = [&](const std::string &mesh, const std::string &axes) {
    return parsed(replaced(replaced(shardc::plan::over(4, ops), "{ dp = 4 }", mesh), "[dp]", axes));
  };
  for (const Plan &plan :
       {over("{ dp = 4  tp = 1 }", "[dp, tp]"), over("{ tp = 1  dp = 4 }", "[tp, dp]")}) {
    EXPECT_EQ(firstFinding(plan), "");
    EXPECT_EQ(oracle::findBreak(plan), "");
  }
  Plan other = over("{ dp = 4  tp = 2 }", "[dp]");
  EXPECT_EQ(firstFinding(other), "");
  std::string overAll = replaced(shardc::plan::over(2, ops), "{ dp = 2 }", "{ dp = 2  tp = 2 }");
  overAll = replaced(replaced(overAll, "[dp]", "[dp]  all = [dp, tp]"), "group dp", "group all");
  other = parsed(overAll);
  EXPECT_NE(firstFinding(other).find("[plan-overlap]"), std::string::npos);
  EXPECT_NE(oracle::findBreak(other), "");
}

TEST(MovingPlaces, AGatherOverAnotherRanksPartIsRefused) {
  std::string ops = "%w = fill : f32[4] comm at sym 16 + 16*dp\n"
                    "%W = all_gather %w channel gather : f32[64] comm at sym 0\n";
  EXPECT_NE(firstFinding(parsed(over(16, ops))).find("[plan-overlap]"), std::string::npos);
}

TEST(MovingPlaces, ACollisionOnOneCoordinateAmongThousandsIsFound) {
  // The slot at 16·dp overlaps the fixed value at 16·4711 on one of 16384 ranks.
  std::string ops = "%fixed = fill : f32[4] comm at sym 75376\n"
                    "%own = fill : f32[4] comm at sym 0 + 16*dp\n"
                    "%a = gelu %fixed : f32[4] comm at work 0\n";
  std::string finding = firstFinding(parsed(over(16384, ops)));
  EXPECT_NE(finding.find(
                "reads '%fixed' from sym [75376, 75392) at index 4711, which by then hold '%own'"),
            std::string::npos)
      << finding;
  EXPECT_EQ(firstFinding(parsed(over(4711, ops))), ""); // no such rank
}

TEST(MovingPlaces, PlacesThatMoveAtDifferentSpeedsMeetInBetween) {
  std::string ops = "%up = fill : f32[4] comm at sym 0 + 32*dp\n"
                    "%down = fill : f32[4] comm at sym 31968 - 16*dp\n"
                    "%a = gelu %up : f32[4] comm at work 0\n";
  std::string finding = firstFinding(parsed(over(1024, ops)));
  EXPECT_NE(finding.find("at index 666"), std::string::npos) << finding; // 32·dp = 31968 - 16·dp
}

TEST(MovingPlaces, AViewOfTheOwnPartOfAPackSeesItsParts) {
  std::string text = over(4, "%p = fill : f32[8,2] grads at work 0\n"
                             "%P = pack %p {block = 0} : f32[16] grads at work 0\n"
                             "%own = view %P {coef = 4} group dp : f32[4] grads at work 0 + 16*dp\n"
                             "%a = gelu %own : f32[4] grads at sym 0\n");
  text = replaced(
      text, "role r",
      "block b numel 16 shard 4 over dp\nparam \"p\" : f32[8,2] block b at 0 init zeros\nrole r");
  EXPECT_EQ(firstFinding(parsed(text)), "");
  std::string broken =
      replaced(text, "%a = gelu", "%x = fill : f32[4] grads at work 48\n%a = gelu");
  std::string finding = firstFinding(parsed(broken));
  EXPECT_NE(finding.find("reads '%own' from work [48, 64) at index 3, which by then hold '%x'"),
            std::string::npos)
      << finding;
}

TEST(MovingPlaces, OnlyTheCoordinatesOfTheRoleCount) {
  EXPECT_EQ(firstFinding(parsed(planText("split"))), "");
  std::string finding = firstFinding(
      parsed(replaced(planText("split"), "at work 128 + 64*dp", "at work 144 + 64*dp")));
  EXPECT_NE(finding.find("[plan-arena]"), std::string::npos) << finding;
  // %z of the role 'others' overlaps the sum only on the last rank.
  finding = firstFinding(parsed(replaced(
      planText("split"), "%z = gelu %sum after %sum : f32[16] activations at work 192 - 64*dp",
      "%z = gelu %sum after %sum : f32[16] activations at work 128 - 64*dp")));
  EXPECT_NE(finding.find("in work [0, 64) at index 2 overlaps an operand"), std::string::npos)
      << finding;
}

TEST(Packs, PaddingIsNotConsumed) {
  // The bytes of @g after the bias, from 320 on, belong to no parameter; the reduction reads them
  // too.
  auto withX = [](int64_t offset) {
    Plan plan = parsed(planText("zero"));
    for (Value &value : plan.roles[0].segments[2].values)
      if (value.name == "x")
        value.place.offset = offset;
    return firstFinding(plan);
  };
  EXPECT_EQ(withX(320), "");
  EXPECT_NE(withX(304), ""); // %x overwrites the gradient of the bias
}

TEST(Cells, AnEvaluationThatTakesAGradientsPlaceIsRefusedOnlyIfGradientsLiveOn) {
  // In 'zero', evaluation follows the update. The gradients have been used by then, so evaluation
  // may overwrite them.
  EXPECT_EQ(firstFinding(parsed(planText("zero"))), "");
  // If the first microbatch adds to the old sum, the gradients are still needed.
  std::string text =
      replaced(planText("zero"), "acc(0 = %dw.old if not_first)", "acc(0 = %dw.old)");
  std::string finding = firstFinding(parsed(text));
  EXPECT_NE(
      finding.find("cell '@g' in work [0, 256), which has no content at this point [plan-cell]"),
      std::string::npos)
      << finding;
}

TEST(Cells, AWholeThatIsOutOfDateIsNotRead) {
  // After the update, only the rank's own slot is new, so a microbatch without a gather reads stale
  // parts.
  std::string text =
      replaced(planText("zero"), "else(0 = %w) if first : f32[96] params at sym 0\n    %weight",
               "else(0 = %w) if last : f32[96] params at sym 0\n    %weight");
  std::string finding = firstFinding(parsed(text));
  EXPECT_NE(finding.find("cell '@w' in sym [0, 96), which has no content at this point"),
            std::string::npos)
      << finding;
}

TEST(Cells, WhatIsWrittenOverBeforeTheEndMattersToReadersAlone) {
  std::string text = "shardc.plan 2 placed \"left\"\n"
                     "role all \"w\" {\n"
                     "  arenas { state = 0 work = 512 sym = 0 host = 0 }\n"
                     "  cell @g : f32[32] in work for grads at 0\n"
                     "  segment a {\n"
                     "    %g = fill : f32[32] grads at work 0\n"
                     "    %t = fill : f32[32] activations at work 64\n"
                     "    out @g = %g\n"
                     "  }\n"
                     "  segment b {\n"
                     "    in %g = @g at work 0\n"
                     "    %r = gelu %g : f32[32] activations at work 256\n"
                     "  }\n"
                     "  program { run a }\n"
                     "}\n";
  EXPECT_EQ(firstFinding(parsed(text)), "");
  std::string finding = firstFinding(parsed(replaced(text, "run a }", "run a run b }")));
  EXPECT_NE(finding.find("the segment leaves '%g' in work [64, 128), which by then hold '%t' "
                         "[plan-reads-from]"),
            std::string::npos)
      << finding;
  EXPECT_NE(finding.find("note: '%t' overwrites it here"), std::string::npos) << finding;
}

/// Segment a makes @g, segment b takes it.
std::string twoSegments(const std::string &a, const std::string &b, const std::string &program) {
  return "shardc.plan 2 placed \"two\"\nmesh { dp = 2 } groups { dp = [dp] } data dp"
         "\nrole all \"w\" {\n"
         "  arenas { state = 0 work = 512 sym = 0 host = 0 }\n"
         "  cell @g : f32[32] in work for grads at 0\n"
         "  segment a {\n" +
         a + "    out @g = %g\n  }\n  segment b {\n    in %g = @g at work 0\n" + b +
         "  }\n  program { " + program + " }\n}\n";
}

TEST(Cells, WhatIsTakenOverBeforeTheEndMattersToReadersAlone) {
  const std::string make = "%g = fill : f32[32] grads at work 0\n"
                           "%t = fill acc(0 = %g) : f32[32] grads at work 0\n";
  const std::string take = "%r = gelu %g : f32[32] grads at work 256\n";
  EXPECT_EQ(firstFinding(parsed(twoSegments(make, take, "run a"))), "");
  std::string finding = firstFinding(parsed(twoSegments(make, take, "run a run b")));
  EXPECT_NE(finding.find("the segment leaves '%g' in work [0, 128), which by then hold '%t' "
                         "[plan-reads-from]"),
            std::string::npos)
      << finding;
}

TEST(Cells, APartLastsWhereOtherBytesAreWrittenOver) {
  auto withView = [](const std::string &view, const std::string &place) {
    return firstFinding(parsed(
        twoSegments("%g = fill : f32[32] grads at work 0\n%t = fill : f32[8] grads at work 32\n",
                    "%v = view %g " + view + " : f32[8] grads at work " + place +
                        "\n%r = gelu %v : f32[8] grads at work 256\n",
                    "run a run b")));
  };
  EXPECT_EQ(withView("{offset = 0}", "0"), "");
  EXPECT_EQ(withView("{offset = 16}", "64"), "");
  EXPECT_EQ(withView("{offset = 16  coef = 8} group dp", "64 + 32*dp"), "");
  std::string at8 = "which by then hold '%t' [plan-reads-from]";
  EXPECT_NE(withView("{offset = 12}", "48").find(at8), std::string::npos);
  EXPECT_NE(withView("{coef = 8} group dp", "0 + 32*dp").find(at8), std::string::npos)
      << "the second rank reads what is spoiled";
}

TEST(Cells, APartIsFollowedThroughOtherCells) {
  // @h is left as a view of @g, and read through a view of @h.
  std::string text = twoSegments(
      "%g = fill : f32[32] grads at work 0\n%t = fill : f32[4] grads at work 32\n",
      "%h = view %g {offset = 8} : f32[16] grads at work 32\nout @h = %h\n", "run a run b run c");
  text = replaced(text, "  segment a", "  cell @h : f32[16] in work for grads at 32\n  segment a");
  text = replaced(text, "  program",
                  "  segment c {\n    in %h = @h at work 32\n"
                  "    %v = view %h {offset = 4} : f32[12] grads at work 48\n"
                  "    %r = gelu %v : f32[12] grads at work 256\n  }\n  program");
  EXPECT_EQ(firstFinding(parsed(text)), "");
  text = replaced(text, "{offset = 4} : f32[12] grads at work 48",
                  "{offset = 0} : f32[12] grads at work 32");
  EXPECT_NE(firstFinding(parsed(text)).find("'%t' [plan-reads-from]"), std::string::npos);
}

TEST(Cells, EveryIsDueWhereItsCountDividesTheStep) {
  const std::string make = "%g = fill : f32[32] grads at work 0\n";
  const std::string take = "%r = gelu %g : f32[32] grads at work 256\n";
  auto with = [&](const std::string &program) {
    return firstFinding(parsed(twoSegments(make, take, program)));
  };
  EXPECT_EQ(with("steps 4 { every 2 { run a } every 4 { run b } }"), "") << "both are due then";
  EXPECT_NE(with("steps 4 { every 4 { run a } every 2 { run b } }"), "");
  EXPECT_EQ(with("steps 2 { every 3 { run b } }"), "") << "it is never due";
  EXPECT_NE(with("steps 3 { every 3 { run b } }"), "");
  EXPECT_EQ(with("steps 1099511627776 { every 2 { run a } every 6 { run b } }"), "");
  EXPECT_NE(with("steps 1099511627776 { every 2 { run a } every 9 { run b } }"), "");
}

TEST(Cells, AFindingNamesTheBytesAndTheCoordinateAtFault) {
  std::string text =
      twoSegments("%g = fill : f32[32] grads at work 0\n",
                  "%v = view %g {offset = 16  coef = 8} group dp : f32[4] grads at work 64 + "
                  "32*dp\n%r = gelu %v : f32[4] grads at work 256\n",
                  "run a run over run b");
  text = replaced(text, "  segment b",
                  "  segment over {\n    %t = fill : f32[4] grads at work 96\n  }\n  segment b");
  Plan plan = parsed(text);
  Finding finding = verify(plan)[0];
  EXPECT_NE(
      finding.message.find("'@g' in work [96, 112) at index 1, which has no content at this point"),
      std::string::npos)
      << finding.message;
  EXPECT_EQ(finding.noteAt, (Spot{0, 1, 0}));
}

TEST(Cells, WhatSpoilsAContentThatIsPassedThroughIsNamed) {
  std::string text =
      twoSegments("%g = fill : f32[32] grads at work 0\n",
                  "%r = gelu %g : f32[32] grads at work 256\n", "run a run pass run b");
  text =
      replaced(text, "  segment b",
               "  segment pass {\n    in %g = @g at work 0\n    %t = fill : f32[4] grads at work "
               "96\n    out @g = %g\n  }\n  segment b");
  Finding finding = verify(parsed(text))[0];
  EXPECT_EQ(finding.message, "the segment leaves '%g' in work [96, 112), which by then hold '%t'");
  EXPECT_EQ(finding.at, (Spot{0, 1, 0}));
  EXPECT_EQ(finding.note, "cell '@g' is read here");
  EXPECT_EQ(finding.noteAt, (Spot{0, 2, 0}));
}

TEST(Cells, WhatIsDueTogetherIsFoundWithoutFollowingEachStep) {
  const std::string make = "%g = fill : f32[32] grads at work 0\n";
  const std::string take = "%r = gelu %g : f32[32] grads at work 256\n";
  auto visitsDo = [&](const std::string &program) {
    return verify(parsed(twoSegments(make, take, program)), 20, 1 << 20).empty();
  };
  std::string seldom = "every 1000003 { run a } every 1000033 { run a } } ";
  EXPECT_TRUE(visitsDo("steps 1099511627776 { every 2 { run a } every 2 { run b } " + seldom));
  EXPECT_FALSE(visitsDo("steps 1099511627776 { every 2 { run a } every 3 { run b } " + seldom));
}

TEST(Cells, ARunMayBeginWithAnyStepAndEndAfterAny) {
  const std::string make = "%g = fill : f32[32] grads at work 0\n";
  const std::string take = "%r = gelu %g : f32[32] grads at work 256\n";
  auto with = [&](const std::string &program) {
    return firstFinding(parsed(twoSegments(make, take, program)));
  };
  EXPECT_EQ(with("steps 4 { run a every 2 { run b } }"), "");
  EXPECT_NE(with("steps 4 { every 2 { run b } run a }"), "") << "it may begin with the second";
  EXPECT_EQ(with("run a steps 4 { every 2 { run b } } run b"), "");
  EXPECT_NE(with("steps 4 { run a } run b"), "") << "a checkpoint of the last step may be loaded";
  EXPECT_NE(with("steps 2 { every 2 { run a } } run b"), "");
}

TEST(Cells, EveryIsTriedBothWays) {
  // A cell that only the evaluation fills has no content in steps without evaluation.
  std::string text = planText("zero");
  text = replaced(text, "  segment init init {",
                  "  cell @e : f32[8,8] in state for data at 512\n  segment init init {");
  text = replaced(text, "    %y = matmul %x, %weight after %W : f32[8,8] activations at work 256\n",
                  "    %y = matmul %x, %weight after %W : f32[8,8] activations at state 512\n    "
                  "out @e = %y\n");
  text = replaced(text, "    in %step = @step at state 0\n    in %master",
                  "    in %e = @e at state 512\n    in %step = @step at state 0\n    in %master");
  text = replaced(text, "    %master.new, %m.new",
                  "    %n = sum_squares %e : f64[1] step at work 512\n    %master.new, %m.new");
  std::string finding = firstFinding(parsed(text));
  EXPECT_NE(finding.find("cell '@e' in state [512, 768), which has no content at this point"),
            std::string::npos)
      << finding;
}

TEST(Cells, ACopyOfAnOwnPartLivesOnThroughItsGather) {
  // In 'zero', the shard's cell lies inside the whole's cell; both have content after the gather.
  std::string text =
      replaced(planText("zero"), "    %y = matmul %x, %weight, %bias {trans_b = true} after %W",
               "    %s = sum_squares %ws after %W : f64[1] step at work 512\n"
               "    %y = matmul %x, %weight, %bias {trans_b = true} after %W");
  EXPECT_EQ(firstFinding(parsed(text)), "");
}

TEST(Streams, TwoWritesWithoutOrderSpoilTheReader) {
  std::string ops = "%a = fill on copy : f32[4] comm at work 0\n"
                    "%b = fill : f32[4] comm at work 0\n"
                    "%c = gelu %b : f32[4] comm at work 16\n";
  EXPECT_NE(firstFinding(parsed(over(1, ops))).find("[plan-race]"), std::string::npos);
  // Without a reader, no order is needed.
  EXPECT_EQ(
      firstFinding(parsed(over(
          1, "%a = fill on copy : f32[4] comm at work 0\n%b = fill : f32[4] comm at work 0\n"))),
      "");
}

TEST(Streams, AnOpThatIsLeftOutStillWaits) {
  // The reduction runs only in the last microbatch, but in all of them, ops that wait for it have
  // waited for the gradient.
  std::string text = replaced(planText("ddp"), "\nstream reduce reduce\n",
                              "\nstream reduce reduce\nstream copy copy\n");
  text = replaced(text, "    %dh0 = matmul %h1, %v1 {trans_b = true}",
                  "    %dh0 = matmul %h1, %v1 {trans_b = true} on copy after %r1");
  text =
      replaced(text, "    %dw0 = matmul %x, %dh0 {trans_a = true} acc(0 = %a0 if not_first)",
               "    %dw0 = matmul %x, %dh0 {trans_a = true} acc(0 = %a0 if not_first) after %dh0");
  EXPECT_EQ(firstFinding(parsed(text)), "");
}

} // namespace
} // namespace shardc::plan
