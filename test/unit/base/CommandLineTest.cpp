#include "runtime/base/CommandLine.h"

#include <gtest/gtest.h>

#include "runtime/base/ExitStatus.h"

namespace shardc::cli {
namespace {

/// A program with an option of each kind, and one command.
struct Sample {
  Program program{"what it does", "sample"};
  std::string plan, mode = "slow", recipe;
  std::vector<std::string> sets;
  std::vector<int> order;
  int workers = 4, descriptor = -1, numRuns = 0;
  std::optional<uint64_t> seed;
  bool ends = true;

  Sample() {
    Option path = program.option("plan", plan, "a plan");
    program.option("--plan-fd", descriptor, "a descriptor").nonNegative().excludes(path);
    program.option("--mode", mode, "a mode").oneOf({"slow", "quick"});
    program.option("--workers", workers, "threads").threadCount().showsDefault();
    program.option("--seed", seed, "a seed").hidden();
    program.option("--set", sets, "path=value").repeatableOneByOne();
    program.flag("!--no-end", ends, "no end");
    program.flag(
        "--first", [this] { order.push_back(1); }, "the first");
    program.flag(
        "--second", [this] { order.push_back(2); }, "the second");
    program.versionFlag(
        "--version", [] { return "sample 1"; }, "its version");
    Command &run = program.addCommand("run", "runs a recipe").alsoCalled({"train"});
    run.option("recipe", recipe, "a recipe").required();
    run.hintsAtUnknown(
        [](const std::string &option) { return option == "--pace" ? "; it is gone" : ""; });
    run.onUse([this] { ++numRuns; });
  }

  std::optional<int> parse(std::vector<const char *> words) {
    words.insert(words.begin(), "sample");
    return program.parse(static_cast<int>(words.size()), words.data());
  }
  /// Returns what a refused command line prints on standard error.
  std::string refused(const std::vector<const char *> &words) {
    testing::internal::CaptureStderr();
    std::optional<int> status = parse(words);
    std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(status, kUsageStatus) << text;
    return text;
  }
};

TEST(CommandLine, SetsVariables) {
  Sample sample;
  EXPECT_EQ(sample.parse({"--mode=quick", "--workers", "8", "--seed=7", "--set", "a=1", "a.plan",
                          "--no-end", "--set=b=2"}),
            std::nullopt);
  EXPECT_EQ(sample.plan, "a.plan");
  EXPECT_EQ(sample.mode, "quick");
  EXPECT_EQ(sample.workers, 8);
  EXPECT_EQ(sample.seed, 7u);
  EXPECT_EQ(sample.sets, (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_FALSE(sample.ends);
  EXPECT_EQ(sample.numRuns, 0);
}

TEST(CommandLine, RunsActionsOfFlagsInTheirOrder) {
  Sample sample;
  EXPECT_EQ(sample.parse({"--second", "--first", "--second"}), std::nullopt);
  EXPECT_EQ(sample.order, (std::vector<int>{2, 1, 2}));
}

TEST(CommandLine, RunsACommandWhoseArgumentsAreThere) {
  Sample sample;
  EXPECT_EQ(sample.parse({"run", "a.recipe"}), std::nullopt);
  EXPECT_EQ(sample.numRuns, 1);
  Sample other;
  EXPECT_EQ(other.refused({"run"}), "sample: error: 'sample run' needs 'recipe': a recipe\n");
  EXPECT_EQ(other.numRuns, 0);
}

TEST(CommandLine, RefusesNumbersOutOfRange) {
  EXPECT_EQ(Sample().refused({"--workers=0"}),
            "sample: error: '--workers' needs a whole number of 1 to 1024; found '0'\n");
  EXPECT_EQ(Sample().refused({"--workers=1025"}),
            "sample: error: '--workers' needs a whole number of 1 to 1024; found '1025'\n");
  EXPECT_EQ(Sample().refused({"--plan-fd=-1"}),
            "sample: error: '--plan-fd' needs a whole number of at least 0; found '-1'\n");
  EXPECT_EQ(Sample().refused({"--plan-fd=1.5"}),
            "sample: error: '--plan-fd' needs a whole number of at least 0; found '1.5'\n");
}

TEST(CommandLine, RefusesOtherWordsAndOptions) {
  EXPECT_EQ(Sample().refused({"--mode=fast"}),
            "sample: error: '--mode' takes one of 'slow', 'quick'; found 'fast'\n");
  EXPECT_EQ(Sample().refused({"--mode=quik"}),
            "sample: error: '--mode' takes one of 'slow', 'quick'; found 'quik'; did you mean "
            "'quick'?\n");
  EXPECT_EQ(Sample().refused({"--colour"}),
            "sample: error: unknown option '--colour'; 'sample --help' lists all options\n");
  EXPECT_EQ(Sample().refused({"--worker=3"}),
            "sample: error: unknown option '--worker=3'; did you mean '--workers'?\n");
  EXPECT_EQ(Sample().refused({"run", "a.recipe", "--pace=3"}),
            "sample: error: unknown option '--pace=3'; it is gone\n");
  EXPECT_EQ(Sample().refused({"run", "--pacf"}),
            "sample: error: unknown option '--pacf'; 'sample run --help' lists all options\n");
  EXPECT_EQ(Sample().refused({"run", "a.recipe", "b.recipe"}),
            "sample: error: 'sample run' takes no further argument; found 'b.recipe'\n");
  EXPECT_EQ(Sample().refused({"a.plan", "--plan-fd=3"}),
            "sample: error: 'plan' and '--plan-fd' cannot be given together\n");
  EXPECT_EQ(Sample().refused({"--set"}), "sample: error: '--set' needs a value\n");
}

TEST(CommandLine, EndsAfterHelpAndVersion) {
  for (const char *flag : {"--help", "--version"}) {
    Sample sample;
    testing::internal::CaptureStdout();
    EXPECT_EQ(sample.parse({flag}), 0);
    std::string text = testing::internal::GetCapturedStdout();
    EXPECT_NE(text.find(flag == std::string("--help") ? "--workers INT:1..1024=4" : "sample 1\n"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("--seed"), std::string::npos);
  }
}

TEST(CommandLine, FindsCommands) {
  Sample sample;
  EXPECT_EQ(sample.program.commandNames(), std::vector<std::string>{"run"});
  EXPECT_EQ(sample.program.findCommand("walk"), nullptr);
  ASSERT_NE(sample.program.findCommand("run"), nullptr);
  EXPECT_EQ(sample.program.findCommand("run")->name(), "run");
  EXPECT_NE(sample.program.findCommand("run")->help("sample run").find("Usage: sample run"),
            std::string::npos);
  EXPECT_FALSE(sample.program.needsCommand());
  sample.program.requireCommand();
  EXPECT_TRUE(sample.program.needsCommand());
  EXPECT_EQ(sample.refused({}), "sample: error: 'sample' needs a subcommand: 'run'\n");
  EXPECT_EQ(sample.refused({"rum"}),
            "sample: error: unknown subcommand 'rum'; did you mean 'run'?\n");
  EXPECT_EQ(sample.refused({"train"}),
            "sample: error: unknown subcommand 'train'; did you mean 'run'?\n");
  EXPECT_EQ(sample.refused({"frobnicate"}),
            "sample: error: unknown subcommand 'frobnicate'; the subcommands are 'run'\n");
}

TEST(CommandLine, RefusesWhereAnArgumentIsMissing) {
  Sample sample;
  testing::internal::CaptureStderr();
  EXPECT_EQ(sample.program.refuseWithout("plan"), kUsageStatus);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sample: error: 'sample' needs 'plan': a plan\n");
}

} // namespace
} // namespace shardc::cli
