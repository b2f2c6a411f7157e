// The importer's tables and readers, each by itself.
#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/Pattern.h"
#include "compiler/upstream/ReadValue.h"
#include "compiler/upstream/Shell.h"

namespace shardc::upstream {
namespace {

using config::Opt;

TEST(FlagTable, KnowsEveryFlagOfTheOptionTable) {
  for (const config::OptionInfo &option : config::options()) {
    if (option.flag.empty())
      continue;
    EXPECT_EQ(canonicalFlag(option.flag), option.flag) << option.path.str();
    bool isFound = false;
    for (const FlagEffect &effect : findFlag(option.flag))
      isFound |= effect.opt == option.opt && effect.negates == option.flagNegates;
    EXPECT_TRUE(isFound) << option.path.str();
    EXPECT_TRUE(idleReason(option.flag).empty()) << option.path.str();
  }
}

TEST(FlagTable, OtherNamesLeadToFlags) {
  struct Row {
    const char *other, *flag;
  };
  constexpr Row kRows[] = {
#define FLAG_ALIAS(other, flag) {other, flag},
#include "compiler/upstream/UpstreamFlags.def"
  };
  for (const Row &row : kRows) {
    EXPECT_EQ(canonicalFlag(row.other), row.flag);
    EXPECT_FALSE(findFlag(row.other).empty()) << row.other;
  }
}

TEST(FlagTable, DefaultsOfTheCommandLineDifferFromTheOptions) {
  for (const CliDefault &row : cliDefaults()) {
    const config::OptionInfo &option = config::info(row.opt);
    config::Value value = config::parseTableValue(row.value, option);
    config::Value silent =
        option.hasDefault() ? config::parseTableValue(option.defaultText, option) : config::Value();
    EXPECT_NE(value, silent) << option.path.str();
  }
}

TEST(FlagTable, AttributesAreFlagsOrTheirReverse) {
  bool given = false;
  EXPECT_EQ(flagOfAttribute("use_megatron_fsdp", given), "--use-megatron-fsdp");
  EXPECT_TRUE(given);
  EXPECT_EQ(flagOfAttribute("check_for_nan_in_loss_and_grad", given),
            "--no-check-for-nan-in-loss-and-grad");
  EXPECT_FALSE(given);
  EXPECT_TRUE(flagOfAttribute("no_such_thing", given).empty());
  ASSERT_EQ(findAttribute("add_bias_linear").size(), 1u);
  EXPECT_EQ(findAttribute("add_bias_linear").front(), Opt::ModelAddBiasLinear);
}

TEST(Pattern, ListsOfPython) {
  EXPECT_EQ(readPattern("([0]*2+[1]*3)"), (std::vector<int64_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(readPattern("[1,0]*2"), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(readPattern("2*([1]+[0])"), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(readPattern("[1] * -1"), std::vector<int64_t>{});
  for (const char *text : {"", "3", "[1", "[1]*[1]", "[1]+1", "[0]*100001", "([1])x"})
    EXPECT_EQ(readPattern(text), std::nullopt) << text;
}

/// The words of the last command, joined by bars; `?` behind those that are not known.
std::string lastCommand(const std::string &script) {
  SourceManager sources;
  DiagEngine diags(sources);
  ShellSetting setting{{{"GIVEN", "g"}}, std::nullopt};
  std::optional<ShellRun> run = readShell(sources.addBuffer("s.sh", script), setting, diags);
  if (!run)
    return "error";
  std::string out;
  if (run->commands.empty())
    return out;
  for (const RanWord &word : run->commands.back().words)
    out += (out.empty() ? "" : "|") + word.text + (word.unknown == nullptr ? "" : "?");
  return out;
}

TEST(Shell, ExpandsAsTheShellDoes) {
  EXPECT_EQ(lastCommand("A=1; p $A \"$A b\" '$A' \\$A"), "p|1|1 b|$A|$A");
  EXPECT_EQ(lastCommand("A=(1 '2 3'); p ${A[@]} \"${A[@]}\" ${A[1]}"), "p|1|2|3|1|2 3|2|3");
  EXPECT_EQ(lastCommand("A=(); p \"${A[@]}\" x \"\""), "p|x|");
  EXPECT_EQ(lastCommand("A=\"x y\"; p ${B:-d} ${A:+e} ${B:=f} $B ${1:-one}"), "p|d|e|f|f|one");
  EXPECT_EQ(lastCommand("A=3; p $((A * (2 + $A) % 4)) $((1/0))"), "p|3|$((1/0))?");
  EXPECT_EQ(lastCommand("p $UNSET $(date +%F) $GIVEN"), "p|$UNSET?|$(date +%F)?|g");
  EXPECT_EQ(lastCommand("A=1; A+=2; L=(a); L+=(b c); p $A ${L[*]}"), "p|12|a|b|c");
  EXPECT_EQ(lastCommand("p a\\\n  b # c\n"), "p|a|b");
  EXPECT_EQ(lastCommand("A='1+2'; p $(($A*2)) $((A*2))"), "p|5|$((A*2))?");
  EXPECT_EQ(lastCommand("p [0]*3+[1]*2 --x=[1]*2 *.bin ~/x {a,b}"),
            "p|[0]*3+[1]*2|--x=[1]*2|*.bin?|~/x?|{a,b}?");
  EXPECT_EQ(lastCommand("A=\"--x $B y\"; p $A"), "p|--x|$B?|y");
}

TEST(Shell, LeavesUnknownWhatIsGuarded) {
  EXPECT_EQ(lastCommand("X=1\nif [ -d $X ]; then X=2; fi; p $X ${X:-3}"), "p|$X?|${X:-3}?");
  EXPECT_EQ(lastCommand("X=1; if [ $X = 1 ] && q; then X=2; fi; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; case $X in [0-2]) X=2;; esac; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; if [ $((X++)) = 1 ]; then Y=2; fi; p $X $Y"), "p|$X?|$Y?");
  EXPECT_EQ(lastCommand("X=1; for i in 1 2; do p $X $i; X=$i; done"), "p|$X?|$i?");
  EXPECT_EQ(lastCommand("f() { X=2; }\nX=1; f; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; [ -f y ] && X=2; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; [ 1 -ef 2 ] && X=2; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; ((X++)); p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; ((X < 2)); p $X"), "p|1");
  EXPECT_EQ(lastCommand("X=1; read X; p $X"), "p|$X?");
  EXPECT_EQ(lastCommand("X=1; source y; p $X ${Y:-2}"), "p|$X?|${Y:-2}?");
  EXPECT_EQ(lastCommand("X=(a b); if q; then X+=(--c); fi; p \"${X[@]}\""), "p|a|b|$X?");
  EXPECT_EQ(lastCommand("X=a; if q; then X=\"$X --c\"; fi; p $X"), "p|a|$X?");
  EXPECT_EQ(lastCommand("declare -A M=([a]=1); p ${M[a]}"), "p|${M[a]}?");
  EXPECT_EQ(lastCommand("declare -i n=1; n=2+3; p $n"), "p|$n?");
  EXPECT_EQ(lastCommand("X=1; unset -f X; p $X"), "p|1");
  EXPECT_EQ(lastCommand("A=(a b); unset 'A[1]'; p ${A[@]}"), "p|$A?");
  EXPECT_EQ(lastCommand("f() { local IFS=,; }\nX=a,b; f; p $X \"$X\""), "p|a,b?|a,b");
  EXPECT_EQ(lastCommand("IFS=,; X='a b'; p $X"), "p|a b?");
  EXPECT_EQ(lastCommand("set -- a b; p $1 $#"), "p|$1?|$#?");
  EXPECT_EQ(lastCommand("C='p --x 1'; eval $C"), "p|--x|1");
  EXPECT_EQ(lastCommand("f() { p $X $1; X=2; }\nX=1; f; f() { q; }\nX=3"), "p|$X?|$1?");
  EXPECT_EQ(lastCommand("A=(a b); A[1]=c; p ${A[0]}"), "p|${A[0]}?");
  EXPECT_EQ(lastCommand("p before; exit; p late"), "p|before");
  for (const char *script : {"'a", "if x; then", "p $(", "A=(1", "f() p", ")", "case x in a",
                             "function f g() { p; }", "{ f()\n}\n{ p; }"})
    EXPECT_EQ(lastCommand(script), "error") << script;
}

TEST(Shell, TakesTheBranchThatRuns) {
  EXPECT_EQ(lastCommand("X=1\nif [ $X = 1 ]; then X=2; else X=3; fi; p $X"), "p|2");
  EXPECT_EQ(lastCommand("X=1; if [ -z \"$X\" ]; then X=2; elif [[ $X -lt 2 && $X == ?* ]]; then\n"
                        "X=4; fi; p $X"),
            "p|4");
  EXPECT_EQ(lastCommand("X=b1; case $X in a*|c) X=2;; \"b\"*|b1) X=3;; *) X=4;; esac; p $X"),
            "p|$X?"); // a pattern with quotes
  EXPECT_EQ(lastCommand("X=b1; case $X in a*|c) X=2;; b?) X=3;; *) X=4;; esac; p $X"), "p|3");
  EXPECT_EQ(lastCommand("X=; [ -n \"$X\" ] && X=2 || X=3; p $X"), "p|3");
  EXPECT_EQ(lastCommand("X=1; ! [[ $X -gt 0 ]] || X=2; p $X"), "p|2");
  EXPECT_EQ(lastCommand("X=1; if [ $X = 1 ]; then p before; exit 0; else p other; fi; p late"),
            "p|before");
  EXPECT_EQ(lastCommand("X=1; if [ $X = 2 ]; then f() { X=5; }; fi; p $X"), "p|1");
}

TEST(Shell, TellsWhichFlagsAnUnknownPartMayHold) {
  SourceManager sources;
  DiagEngine diags(sources);
  std::optional<ShellRun> run =
      readShell(sources.addBuffer(
                    "s.sh", "A=(--lr 1)\nif q; then B='--bf16'; A+=(--save x $B); fi\np ${A[@]}"),
                {}, diags);
  ASSERT_TRUE(run.has_value());
  const RanWord &last = run->commands.back().words.back();
  ASSERT_NE(last.unknown, nullptr);
  EXPECT_EQ(last.unknown->flags, (std::set<std::string>{"--save", "--bf16"}));
  EXPECT_EQ(sources.lineColumn(last.unknown->cause.begin).line, 2u);
}

TEST(ReadValue, TakesUpstreamsSpellings) {
  auto read = [](Opt opt, llvm::StringRef text) {
    std::optional<config::Value> value =
        readValue(config::info(opt).type, *makeText(text, SourceRange()));
    return value ? toRecipeText(*value, config::info(opt).type) : std::string("-");
  };
  EXPECT_EQ(read(Opt::ModelActivationFunc, "torch.nn.functional.silu"), "silu");
  EXPECT_EQ(read(Opt::DdpMegatronFsdpMainGradsDtype, "torch.float32"), "fp32");
  EXPECT_EQ(read(Opt::ModelMoeLayerFreq, "[0]*1+[1]*2"), "[0, 1, 1]");
  EXPECT_EQ(read(Opt::ModelWindowSize, "(128,0)"), "[128, 0]");
  EXPECT_EQ(read(Opt::DistDistributedTimeoutMinutes, "30"), "30");
  EXPECT_EQ(read(Opt::ModelNumLayers, "1e1"), "10");
  EXPECT_EQ(read(Opt::ModelNumLayers, "many"), "-");
  EXPECT_EQ(read(Opt::ModelBf16, "maybe"), "-");
}

} // namespace
} // namespace shardc::upstream
