// Printer and parser: the text form, printing and parsing back, and refused texts.
#include <limits>

#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/plan/Variants.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::parseError;
using test::planText;

constexpr std::string_view kHead = "shardc.plan 2 logical \"t\"\n";

/// A plan with one role that contains these lines.
std::string withRole(std::string_view lines) {
  return std::string(kHead) +
         "mesh { dp = 2 }\ngroups { dp = [dp] } data dp\nstream gather\nstream copy\n"
         "channel gather group dp via window multiprocessors 16 stream gather\n"
         "unit u\nrole r \"w\" {\n" +
         std::string(lines) + "}\n";
}

std::string withOps(std::string_view ops) {
  return withRole("  cell @c : f32[4] in work for grads\n  segment s body {\n    in %c = @c\n" +
                  std::string(ops) + "\n  }\n");
}

class Files : public testing::TestWithParam<const char *> {};

TEST_P(Files, PrintParsePrintIsTheIdentity) {
  std::string once = print(parsed(planText(GetParam())));
  EXPECT_EQ(print(parsed(once)), once);
}

/// A plan with rings, transfers, ranges of microbatches, and loops.
constexpr std::string_view kPipeline = R"(shardc.plan 2 placed "p"
mesh { pp = 2 }
groups { pp = [pp] }
stream up
stream down
channel up group pp pair 0 1 stream up
channel down group pp pair 1 0 multiprocessors 2 stream down
role first "stage 0" where { pp = 0 to 0 } {
  arenas { state = 0  work = 4096  sym = 0  host = 0 }
  cell @x slots 3 : f32[8] in work for activations at 1024 + 0*pp stride 64
  cell @y step slots 2 : f32[8] in work for activations at 2048 + 16*pp stride 32
  segment forward.0 forward body {
    in %x = @x at work 1024 slots 3 stride 64
    %y = gelu %x if mb 0 to 1 : f32[8] activations at work 1024 slots 3 stride 64 mb + 1
    send %y channel up if mb 0 to 1 after %y
    %z = recv channel down acc(0 = %x if mb 2 to 7) : f32[8] activations at work 0
    out @x = %y mb + 1
    out @y = %z mb - 2 droppable
  }
  program {
    steps 10 {
      run forward.0 mb 0
      loop 3 {
        run forward.0 mb 2*i + 1
        run forward.0 mb i
        loop 2 {
          run forward.0 mb 2*i - 1
          run forward.0 mb 3*i
        }
      }
    }
  }
}
)";

TEST(PlanText, PipelinesPrintAsTheyWereRead) {
  Plan plan = parsed(std::string(kPipeline));
  std::string once = print(plan);
  EXPECT_EQ(print(parsed(once)), once);
  std::string body = once.substr(once.find('\n'));
  std::string wanted(kPipeline.substr(kPipeline.find('\n')));
  for (std::string_view kept :
       {"channel up group pp pair 0 1 stream up", "slots 3 : f32[8]", "stride 32",
        "work 1024 slots 3 stride 64 mb + 1", "if mb 0 to 1", "if mb 2 to 7", "out @x = %y mb + 1",
        "out @y = %z mb - 2 droppable", "run forward.0 mb 2*i + 1", "run forward.0 mb 2*i - 1",
        "run forward.0 mb i\n", "run forward.0 mb 0\n", "loop 2 {", "send %y channel up"}) {
    EXPECT_NE(wanted.find(kept), std::string::npos) << kept;
    EXPECT_NE(body.find(kept), std::string::npos) << kept << "\n" << body;
  }
  const Role &role = plan.roles[0];
  EXPECT_EQ(role.cells[0].bytes(), 2 * 64 + 32);
  EXPECT_EQ(role.segments[0].outs[1].shift, -2);
  EXPECT_EQ(role.segments[0].values[1].place.offsetFor(4), 1024 + 2 * 64);
  EXPECT_EQ(role.program[0].children[1].children[0].microbatch->at(2), 5);
  EXPECT_EQ(plan.channels[1].pair, (std::array<int32_t, 2>{1, 0}));
}

TEST(PlanText, RefusesPipelinesThatCannotBeRead) {
  auto with = [](std::string_view from, std::string_view to) {
    std::string text(kPipeline);
    text.replace(text.find(from), from.size(), to);
    return parseError(text);
  };
  EXPECT_NE(with("pair 0 1", "pair 0 2").find("[plan-limit]"), std::string::npos);
  EXPECT_NE(with("pair 0 1", "pair 1 1").find("need to differ"), std::string::npos);
  EXPECT_NE(with("if mb 0 to 1", "if mb 2 to 1").find("[plan-limit]"), std::string::npos);
  EXPECT_NE(with("slots 3 :", "slots 1 :").find("[plan-limit]"), std::string::npos);
  EXPECT_NE(with("at 1024 + 0*pp stride 64", "at 1024").find("expected 'stride'"),
            std::string::npos);
  EXPECT_NE(with("mb 2*i + 1", "mb 2*j + 1").find("expected 'i'"), std::string::npos);
}

TEST(Variants, MicrobatchesThatExecuteAlikeShareOne) {
  Plan plan = parsed(std::string(kPipeline));
  VariantTable table(plan.roles[0].segments[0]);
  EXPECT_EQ(table.of(0, 9), (Variant{0, 9}));
  EXPECT_EQ(table.of(1, 9), (Variant{1, 9}));
  for (int64_t microbatch : {2, 3, 7})
    EXPECT_EQ(table.of(microbatch, 10), (Variant{2, 10})) << microbatch;
  EXPECT_EQ(table.of(8, 10), (Variant{8, 10}));
  EXPECT_EQ(table.of(9, 10), (Variant{9, 10}));
  Segment plain = plan.roles[0].segments[0];
  plain.ops.clear();
  VariantTable four(plain);
  EXPECT_EQ(four.of(0, 1), Variant::Only);
  EXPECT_EQ(four.of(0, 7), Variant::First);
  EXPECT_EQ(four.of(3, 7), Variant::Middle);
  EXPECT_EQ(four.of(6, 7), Variant::Last);
  EXPECT_EQ(slotsOf(plan.roles[0], plan.roles[0].segments[0]), 6);
}

TEST(PlanText, IntervalsMayRepeat) {
  auto with = [](std::string_view when) {
    std::string text(kPipeline);
    text.replace(text.find("mb 2 to 7"), 9, when);
    return text;
  };
  std::string printed = print(parsed(with("mb 2 to 3 every 3 to 9")));
  EXPECT_NE(printed.find("if mb 2 to 3 every 3 to 9)"), std::string::npos);
  EXPECT_EQ(print(parsed(printed)), printed);
  for (const char *wrong : {"mb 2 to 3 every 2 to 9", // no microbatch is between the two ranges
                            "mb 2 to 3 every 3 to 4", // the range does not repeat
                            "mb 2 to 3 every 3 to 9999999", "mb 2 to 3 every 0 to 9"})
    EXPECT_NE(parseError(with(wrong)).find("[plan-limit]"), std::string::npos) << wrong;
  EXPECT_NE(parseError(with("mb 2 to 3 every 3")).find("expected 'to'"), std::string::npos);
}

TEST(PlanText, RepetitionsHaveALimit) {
  std::string text(kPipeline), op = "    %y = gelu %x if mb 0 to 1 :";
  size_t at = text.find(op), end = text.find('\n', at) + 1;
  std::string line = text.substr(at, end - at), all;
  for (int i = 0; i < 9; ++i) { // each repeats 2^19 times
    std::string own = line;
    own.replace(own.find("%y"), 2, "%y" + std::to_string(i));
    own.replace(own.find("mb 0 to 1"), 9, "mb 0 to 0 every 2 to 1048576");
    all += own;
  }
  text.insert(at, all);
  EXPECT_NE(parseError(text).find("repetitions of predicates"), std::string::npos);
}

TEST(Variants, IntervalsThatRepeatShareOne) {
  Plan plan = parsed(std::string(kPipeline));
  Segment segment = plan.roles[0].segments[0];
  for (Op &op : segment.ops) {
    op.pred = Pred::Always;
    op.ties.clear();
  }
  segment.ops[0].pred = Pred::every(3, 2, 2, 11);
  segment.ops[1].pred = Pred::every(3, 4, 4, 10);
  VariantTable table(segment);
  for (int64_t microbatch : {2, 5, 8, 11})
    EXPECT_EQ(table.of(microbatch, 16), (Variant{2, 16})) << microbatch;
  for (int64_t microbatch : {4, 7, 10})
    EXPECT_EQ(table.of(microbatch, 16), (Variant{4, 16})) << microbatch;
  for (int64_t microbatch : {1, 3, 6, 9, 12, 13, 14})
    EXPECT_EQ(table.of(microbatch, 16), (Variant{1, 16})) << microbatch;
}

TEST(Variants, MicrobatchesAreCountedWithLoops) {
  Plan plan = parsed(std::string(kPipeline));
  const std::vector<ProgramNode> &steps = plan.roles[0].program[0].children;
  EXPECT_EQ(namedMicrobatches(plan.roles[0], steps)[0], 6); // numbers up to 2 * 2 + 1
  std::vector<int64_t> numbers;
  forEachRun(steps, [&](const ProgramNode &run, int64_t iteration) {
    numbers.push_back(run.microbatch->at(iteration));
    return numbers.size() < 9;
  });
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 0, -1, 0, 1, 3, 3, 1}));
}

TEST(PlanText, TheHashCoversAllButHeadAndPage) {
  Plan plan = parsed(planText("fsdp"));
  std::string printed = print(plan, "// a page\n"), bare = print(plan);
  size_t hash = printed.find(" hash ");
  ASSERT_NE(hash, std::string::npos);
  EXPECT_EQ(printed.substr(0, hash + 14), bare.substr(0, hash + 14));
  std::string otherPage = printed;
  otherPage.replace(otherPage.find("a page"), 6, "another page");
  EXPECT_EQ(print(parsed(otherPage)), bare);
}

TEST(PlanText, AnEditBelowTheHeadIsRefusedUnlessTheHashIsTakenOut) {
  std::string printed = print(parsed(planText("fsdp")), "// a page\n"), edited = printed;
  size_t digit = edited.rfind(" steps ") + 7;
  edited[digit] = edited[digit] == '9' ? '8' : static_cast<char>(edited[digit] + 1);
  EXPECT_NE(parseError(edited).find("[plan-hash]"), std::string::npos) << parseError(edited);
  edited.erase(edited.find(" hash "), 14);
  EXPECT_NE(print(parsed(edited)), printed);
}

INSTANTIATE_TEST_SUITE_P(Plans, Files,
                         testing::Values("fsdp", "zero", "ddp", "slots", "roles", "tensor"));

TEST(PlanText, EveryOpClauseComesBack) {
  std::string text =
      withOps("    %y = l2norm_bwd %c, %c, %c {eps = 1e-05} unit u on copy acc(0 = %c if "
              "not_first) "
              "else(0 = %c) if last : f32[4] comm at sym 16 - 32*dp\n"
              "    %z, %w = all_gather %y channel gather after %y : "
              "f32[4] comm, bf16[2,2,1,3] data\n    out @c = %z");
  std::string once = print(parsed(text));
  for (std::string_view part :
       {"{eps = 1e-05}", "unit u on copy acc(0 = %c if not_first) else(0 = %c) if last",
        "comm at sym 16 - 32*dp", "channel gather after %y", "bf16[2,2,1,3] data"})
    EXPECT_NE(once.find(part), std::string::npos) << part << "\n" << once;
  EXPECT_EQ(print(parsed(once)), once);
}

TEST(PlanText, DefaultsAreLeftOut) {
  std::string once = print(parsed(withOps("    %y = gelu %c {tanh_approx = false} on compute if "
                                          "always : f32[4] comm")));
  EXPECT_NE(once.find("    %y = gelu %c : f32[4] comm\n"), std::string::npos) << once;
}

TEST(PlanText, NumbersAndStringsOfTheJobComeBack) {
  Plan plan;
  plan.name = "quote \" backslash \\ newline \n bell \x07 é";
  plan.job = {{"checkpoint.most_recent_k", int64_t{-1}},
              {"checkpoint.save", std::string("x\"y")},
              {"dataset.blend", std::vector<std::string>{}},
              {"dataset.data_path", std::vector<std::string>{"p", "q, r"}},
              {"derived.predicted.step_ms", std::numeric_limits<double>::infinity()},
              {"env.odd name", std::string("\x07")},
              {"model.bf16", true},
              {"optimizer.clip_grad", 1e300},
              {"optimizer.lr", 0.1},
              {"optimizer.min_lr", -0.0},
              {"optimizer.weight_decay", 3.0},
              {"rng.seed", std::numeric_limits<int64_t>::max()}};
  Plan again = parsed(print(plan));
  EXPECT_EQ(again.name, plan.name);
  EXPECT_EQ(again.job, plan.job);
}

TEST(PlanText, SourcesComeBackToTheByte) {
  Plan plan = parsed(planText("fsdp"));
  plan.sources = {{Source::Base, "base/a b.recipe", "recipe a {\r\n  \"x\\\"\n}"},
                  {Source::Recipe, "b.recipe", "\n\n// \xc3\xa9 \t{ } [plan]\n"},
                  {Source::Overlay, "", ""},
                  {Source::Setting, "", "train.train_iters=3"}};
  plan.sources.push_back(
      {Source::Base, "long", std::string(2 * limits::kStringBytesMax, '\\') + "\n"});
  std::string once = print(plan);
  EXPECT_EQ(parsed(once).sources, plan.sources);
  EXPECT_EQ(print(parsed(once)), once);
}

TEST(PlanText, RefusesBadSources) {
  auto error = [](std::string_view lines) { return parseError(std::string(kHead) + lines.data()); };
  EXPECT_NE(error("source file \"a\" { }").find("'file'"), std::string::npos);
  EXPECT_NE(error("source recipe a { }").find("expected name of a source in quotes, found 'a'"),
            std::string::npos);
  EXPECT_NE(error("source recipe \"a\" { b }").find("expected text of a source in quotes"),
            std::string::npos);
  EXPECT_NE(error("source recipe \"a\" { \"b\"").find("found end of file"), std::string::npos);
}

TEST(PlanText, NamesWithOtherCharactersAreQuoted) {
  Plan plan =
      parsed(withOps("    %\"a b\" = gelu %c : f32[4] comm\n    %d = gelu %\"a b\" : f32[4] comm"));
  EXPECT_EQ(plan.roles[0].segments[0].values[1].name, "a b");
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

TEST(PlanText, CommentsAndLayoutDoNotMatter) {
  std::string text = planText("fsdp"), spread;
  for (char c : text)
    spread += c == ' '    ? std::string(" ")
              : c == '\n' ? std::string(" // remark\n\n")
                          : std::string(1, c);
  EXPECT_EQ(print(parsed(spread)), print(parsed(text)));
}

TEST(PlanText, APageStandsBelowTheFirstLine) {
  std::string text = print(parsed(planText("ddp")), "// for people\n");
  EXPECT_EQ(text.find("// for people"), text.find('\n') + 1);
  EXPECT_EQ(print(parsed(text)), print(parsed(planText("ddp"))));
}

TEST(PlanText, OffsetsOfAllSignsComeBack) {
  for (std::string_view place :
       {"0", "16", "-16", "0 + 16*dp", "64 - 16*dp", "-4398046511104 - 4398046511104*dp"}) {
    std::string text = withOps("    %y = gelu %c : f32[4] comm at work " + std::string(place));
    EXPECT_NE(print(parsed(text)).find("at work " + std::string(place) + "\n"), std::string::npos)
        << place;
  }
}

TEST(PlanText, ABrokenPlanStillPrints) {
  Plan plan = parsed(planText("fsdp"));
  Segment &segment = plan.roles[0].segments[1];
  segment.ops[1].operands[0] = 4000000000u;
  segment.ops[1].group = 7;
  segment.ops[1].waits = {12345};
  segment.ops[2].unit = 99;
  segment.ops[2].results = {77};
  segment.outs[0].cell = 55;
  std::string text = print(plan);
  EXPECT_NE(text.find("all_gather %?4000000000"), std::string::npos);
  EXPECT_NE(text.find("after #12345"), std::string::npos);
}

struct Refusal {
  const char *text;
  const char *error; ///< begins with line and column
};

void PrintTo(const Refusal &refusal, std::ostream *out) {
  *out << std::string_view(refusal.error).substr(0, std::string_view(refusal.error).find(": "));
}

std::string nameOfRefusal(const testing::TestParamInfo<Refusal> &info) {
  return "case" + std::to_string(info.index);
}

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, WithTheReasonAtTheNarrowestPlace) {
  std::string message = parseError(GetParam().text);
  EXPECT_EQ(message.substr(0, message.find('\n')), std::string("test.plan:") + GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Refused,
    testing::Values(
        Refusal{"", "1:1: error: not a plan; the text needs to begin with 'shardc.plan 2' "
                    "[plan-syntax]"},
        Refusal{"recipe x {", "1:1: error: not a plan; the text needs to begin with 'shardc.plan "
                              "2' [plan-syntax]"},
        Refusal{"shardc.plan 1 placed \"t\"",
                "1:13: error: the plan has format version 1, but this program reads version 2; "
                "compile the recipe again with this program, or run the plan with the program that "
                "wrote it [plan-version]"},
        Refusal{"shardc.plan 2 placed \"t\" hash 0\nmesh { dp = 2 }",
                "1:31: error: the text below has hash 98001c63, but the first line says 0; the "
                "plan was damaged or edited: write it again, or remove 'hash 0' if the edit is "
                "intended [plan-hash]"},
        Refusal{"shardc.plan 2 placed \"t\" hash",
                "1:30: error: expected hash of the text below, found end of file [plan-syntax]"},
        Refusal{"shardc.plan 2 done \"t\"", "1:15: error: unknown plan level 'done' [plan-name]"},
        Refusal{"shardc.plan 2 placed t",
                "1:22: error: expected plan name in quotes, found 't' [plan-syntax]"},
        Refusal{"shardc.plan 2 placed \"t",
                "1:22: error: plan name has no closing '\"' on its line [plan-syntax]"},
        Refusal{"shardc.plan 2 placed \"t\\y\"",
                "1:24: error: expected '\"', '\\', 'n' or 'x' after '\\' [plan-syntax]"},
        Refusal{"shardc.plan 2 placed \"t\"\nmash { }",
                "2:1: error: expected needs, job, mesh, groups, data, stream, channel, class, "
                "unit, block, param, loc, role, source or specification, found 'mash' "
                "[plan-syntax]"}),
    nameOfRefusal);

INSTANTIATE_TEST_SUITE_P(
    Tables, Refused,
    testing::Values(
        Refusal{"shardc.plan 2 placed \"t\" needs { gpus = \"a\" }",
                "1:34: error: unknown key 'gpus' in 'needs'; it has backend, gpu, device_bytes and "
                "multiprocessors "
                "[plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" job { rng.seed = 1x }",
                "1:43: error: expected option value as a number, found '1x' [plan-syntax]"},
        Refusal{"shardc.plan 2 placed \"t\" mesh { dp = 0 }",
                "1:38: error: size of a mesh axis is 0; it needs to be between 1 and 1048576 "
                "[plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" mesh { a = 99999999999999999999 }",
                "1:37: error: size of a mesh axis is 99999999999999999999; it needs to be between "
                "1 and 1048576 [plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" mesh { a = 1048576 b = 2 }",
                "1:49: error: the mesh has 2097152 ranks; the limit is 1048576 [plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" groups { g = [dp] }",
                "1:40: error: unknown mesh axis 'dp' [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" data dp",
                "1:31: error: unknown group 'dp' [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" mesh { a = 2 } groups { g = [a] } data g data g",
                "1:67: error: 'data' appears twice [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" unit a unit a",
                "1:38: error: unit 'a' is declared twice [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" unit a layr",
                "1:33: error: unknown unit kind 'layr' [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" block b numel 4",
                "1:41: error: expected 'shard', found end of file [plan-syntax]"},
        Refusal{"shardc.plan 2 placed \"t\" param \"p\" : f31[2] init zeros",
                "1:38: error: unknown element type 'f31' [plan-name]"},
        Refusal{"shardc.plan 2 placed \"t\" param \"p\" : f32[2,0] init zeros",
                "1:44: error: extent of a dimension is 0; it needs to be between 1 and "
                "1099511627776 [plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" param \"p\" : f32[1099511627776,4] init zeros",
                "1:38: error: the type has more than 4398046511104 bytes [plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" param \"p\" : f32[1,1,1,1,1] init zeros",
                "1:50: error: a type has at most 4 dimensions [plan-limit]"},
        Refusal{"shardc.plan 2 placed \"t\" loc 1 \"f\" 1 1",
                "1:30: error: index of a recipe location is 1; it needs to be between 0 and 0 "
                "[plan-limit]"}),
    nameOfRefusal);

TEST(PlanText, RefusesBadKinds) {
  const Refusal cases[] = {
      {"cell @a wieght of b : f32[4] in state for params",
       "7:9: error: unknown cell kind 'wieght' [plan-name]"},
      {"cell @a weight : f32[4] in state for params",
       "7:16: error: a cell of kind 'weight' is of a block; expected 'of', found ':' "
       "[plan-syntax]"},
      {"cell @a param of b : f32[4] in state for params",
       "7:18: error: unknown parameter 'b' [plan-name]"},
      {"cell @a weight of c : f32[4] in state for params",
       "7:19: error: unknown block 'c' [plan-name]"},
      {"cell @a step of b : u8[128] in state for step",
       "7:14: error: a cell of kind 'step' is of no block or parameter [plan-syntax]"},
      {"cell @a buffer of b : f32[4] in state for params",
       "7:16: error: a cell of kind 'buffer' is of no block or parameter [plan-syntax]"},
      {"cell @a weight of b : f32[4] in state for params\n"
       "cell @c weight of b : f32[4] in state for params",
       "8:7: error: cell '@c' is 'weight of b' like cell '@a'; a role has one [plan-name]"},
      {"cell @a stop : i32[1] in host for data\ncell @c stop : i32[1] in host for data",
       "8:7: error: cell '@c' is 'stop' like cell '@a'; a role has one [plan-name]"},
      {"segment s trian body {\n}", "7:11: error: unknown segment kind 'trian' [plan-name]"},
  };
  for (const Refusal &each : cases) {
    std::string message = parseError(std::string(kHead) +
                                     "mesh { dp = 2 }\ngroups { dp = [dp] } data dp\nunit u layer\n"
                                     "block b unit u numel 4 shard 4 over dp\nrole r \"w\" {\n" +
                                     each.text + "\n}\n");
    EXPECT_EQ(message.substr(0, message.find('\n')), std::string("test.plan:") + each.error);
  }
}

/// What a kind implies is not printed.
TEST(PlanText, PrintsKindsAndPhases) {
  std::string text = withRole("  cell @c : f32[4] in work for grads\n"
                              "  segment s train body {\n"
                              "    in %c = @c\n"
                              "    %x = gelu %c : f32[4] comm\n"
                              "    %y = gelu %x : f32[4] comm backward recomputed\n"
                              "    out @c = %y\n"
                              "  }\n");
  Plan plan = parsed(text);
  const Segment &segment = plan.roles[0].segments[0];
  EXPECT_EQ(segment.ops[0].phase, Phase::Forward);
  EXPECT_EQ(segment.ops[1].phase, Phase::Backward);
  EXPECT_TRUE(segment.ops[1].isRecomputed);
  EXPECT_NE(print(plan).find("    %y = gelu %x : f32[4] comm backward recomputed\n"),
            std::string::npos);
  EXPECT_NE(print(plan).find("    %x = gelu %c : f32[4] comm\n"), std::string::npos);
}

TEST(PlanText, RefusesBadSegments) {
  const Refusal cases[] = {
      {"    %y = gelo %c : f32[4] comm", "error: unknown operation 'gelo' [plan-name]"},
      {"    %y = gelu %d : f32[4] comm",
       "error: value '%d' is not defined before this use [plan-name]"},
      {"    %c = gelu %c : f32[4] comm",
       "error: value '%c' is defined twice in segment 's' [plan-name]"},
      {"    %y = gelu %c {q = 1} : f32[4] comm", "error: unknown attribute 'q' [plan-name]"},
      {"    %y = dropout %c, %c {p = 1 p = 2} : f32[4] comm",
       "error: attribute 'p' appears twice [plan-name]"},
      {"    %y = gelu %c {causal = true} : f32[4] comm",
       "error: 'gelu' has no attribute 'causal'; it has tanh_approx [plan-name]"},
      {"    %y = add %c, %c {causal = true} : f32[4] comm",
       "error: 'add' has no attribute 'causal'; it has none [plan-name]"},
      {"    %y, %r = rmsnorm %c, %c {zero_centered = true} : f32[4] comm, f32[1] comm",
       "error: 'rmsnorm' needs eps [plan-name]"},
      {"    %y = gelu %c {tanh_approx = 1} : f32[4] comm",
       "error: expected true or false, found '1' [plan-syntax]"},
      {"    %y = step.begin %c {decay_style = up} : f32[4] comm",
       "error: 'up' is not a value of 'decay_style'; it has "
       "constant|linear|cosine|inverse-square-root|WSD [plan-name]"},
      {"    %y = gelu %c group ep : f32[4] comm", "error: unknown group 'ep' [plan-name]"},
      {"    %y = gelu %c on disk : f32[4] comm", "error: unknown stream 'disk' [plan-name]"},
      {"    %y = gelu %c acc(1 = %c) : f32[4] comm",
       "error: index of the tied result is 1; it needs to be between 0 and 0 [plan-limit]"},
      {"    %y = gelu %c after %c : f32[4] comm",
       "error: '%c' is a live-in, so there is no op to wait for [plan-name]"},
      {"    %y, %z = gelu %c : f32[4] comm", "error: expected ',', found '}' [plan-syntax]"},
      {"    %y = gelu %c : f32[4] comm backwards",
       "error: unknown operation 'backwards' [plan-name]"},
      {"    %y = gelu %c : f32[4] junk", "error: unknown purpose 'junk' [plan-name]"},
      {"    %y = gelu %c : f32[4] comm loc 0",
       "error: index of a recipe location is 0; it needs to be between 0 and -1 [plan-limit]"},
      {"    out @c = %c\n    %y = gelu %c : f32[4] comm",
       "error: 'out' lines need to come after the segment's ops, found '%' [plan-syntax]"},
      {"    out @d = %c", "error: unknown cell 'd' [plan-name]"},
  };
  for (const Refusal &each : cases) {
    std::string message = parseError(withOps(each.text));
    EXPECT_NE(message.substr(0, message.find('\n')).find(each.error), std::string::npos) << message;
  }
}

/// A place names the group whose index it depends on.
TEST(PlanText, RefusesPlacesOfUnknownGroups) {
  std::string message = parseError(
      fmt::format("{}mesh {{ dp = 2  tp = 2 }} groups {{ dp = [dp]  tp = [tp] }}\nrole r \"w\" {{\n"
                  "cell @c : f32[4] in work for grads at 0 + 16*ep\n}}\n",
                  kHead));
  EXPECT_EQ(message.substr(0, message.find('\n')),
            "test.plan:4:46: error: unknown group 'ep' [plan-name]");
}

TEST(PlanText, RefusesWrongDivisions) {
  auto error = [](std::string_view division) {
    std::string message =
        parseError(fmt::format("shardc.plan 2 placed \"t\" block b numel 4 shard 2 {}", division));
    return message.substr(0, message.find('\n'));
  };
  EXPECT_EQ(error("over dp"), "test.plan:1:55: error: unknown group 'dp' [plan-name]");
  EXPECT_EQ(error("state over"), "test.plan:1:56: error: expected elements of a shard as an "
                                 "integer, found 'over' [plan-syntax]");
}

TEST(PlanText, RefusesBadPrograms) {
  auto program = [](std::string_view nodes) {
    return parseError(withRole("segment s { }\n program { " + std::string(nodes) + " }\n"));
  };
  EXPECT_NE(program("run t").find("unknown segment 't'"), std::string::npos);
  EXPECT_NE(program("run s 0").find("number of runs is 0; it needs to be between 1 and"),
            std::string::npos);
  EXPECT_NE(program("walk s").find("expected start, run, steps, every, loop or '}', found 'walk'"),
            std::string::npos);
  std::string deep;
  for (int i = 0; i < 20; ++i)
    deep += "steps 1 { ";
  EXPECT_NE(program(deep).find("nested more than 8 deep"), std::string::npos);
}

TEST(PlanText, AnErrorShowsItsLineWithACaret) {
  EXPECT_EQ(parseError("shardc.plan 2 placed \"é\" unit a\n  unit a // again\n"),
            "test.plan:2:8: error: unit 'a' is declared twice [plan-name]\n"
            "  unit a // again\n"
            "       ^\n"
            "test.plan:1:31: note: first declared here [plan-name]\n"
            "shardc.plan 2 placed \"é\" unit a\n"
            "                              ^");
}

TEST(PlanText, ControlCharactersDoNotReachTheTerminal) {
  std::string message = parseError("shardc.plan 2 placed \"t\" \x1b[31m");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(PlanText, ControlCharactersOfNamesAreShownAsText) {
  Plan plan = *parse(R"(shardc.plan 2 logical "p"
loc 0 "a\x1b[2J.recipe" 3 7
role r "" {
  segment "s\x0d" {
    %"v\x07" = token_count : f32[1] step loc 0
  }
  program { run "s\x0d" }
}
)",
                     "p.plan");
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  std::string text = render(plan, findings[0]);
  EXPECT_EQ(text.find("a\\x1b[2J.recipe:3:7: error: "), 0u) << text;
  EXPECT_NE(text.find("segment s\\x0d, op"), std::string::npos) << text;
  for (char c : {'\x1b', '\r', '\x07'})
    EXPECT_EQ(text.find(c), std::string::npos) << text;
}

TEST(PlanText, EveryPrefixIsRefusedOrParsed) {
  std::string text = planText("zero");
  for (size_t length = 0; length < text.size(); length += 7) {
    Result<Plan> plan = parse(std::string_view(text).substr(0, length), "test.plan");
    if (!plan.isOk()) {
      EXPECT_EQ(plan.status().code(), StatusCode::InvalidInput);
    }
  }
}

TEST(Text, ControlCharactersArePrintedAsNumbers) {
  EXPECT_EQ(printable("a\x1b[31m\tb\x7f"), "a\\x1b[31m\\x09b\\x7f");
  EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J"); // the same terminal command in one character
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");                  // as one byte, which is not UTF-8
  EXPECT_EQ(printable("\xc3"), "\\xc3"); // a character that is cut off
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(printable("\xff\xc0\x80"), "\\xff\\xc0\\x80");
  EXPECT_EQ(printable("gr\u00f6\u00dfe \u20ac \U0001f600"), "gr\u00f6\u00dfe \u20ac \U0001f600");
  EXPECT_EQ(printableLines("a\nb\x1b\n\tc"), "a\nb\\x1b\n\tc");
}

} // namespace
} // namespace shardc::plan
