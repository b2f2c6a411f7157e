// The effective recipe reads back as itself.
#include <gtest/gtest.h>

#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

/// Expects that `a` and `b` have equal values of every option; each option is compared separately,
/// so that a failure names it.
void expectEqual(const Config &a, const Config &b, const std::string &text) {
  for (const OptionInfo &option : options())
    EXPECT_TRUE(a[option.opt].value == b[option.opt].value)
        << option.path.str() << " is " << toRecipeText(a, option.opt) << " and "
        << toRecipeText(b, option.opt) << " in\n"
        << text;
}

TEST(Print, EveryOptionReadsBack) {
  for (const std::string &path : allRecipes()) {
    auto loaded = loadFile(path);
    ASSERT_TRUE(loaded->config.has_value());
    std::string text = printRecipe(*loaded->config, /*everything=*/true);
    auto again = loadText(text);
    EXPECT_TRUE(again->ids(Severity::Error).empty()) << again->ids(Severity::Error).front() << text;
    expectEqual(*loaded->config, *again->config, text);
    EXPECT_EQ(printRecipe(*again->config, true), text);
  }
}

TEST(Print, WhatIsShownIsEnough) {
  for (const Case &one : allCases()) {
    auto loaded = loadText(one.part.text);
    if (loaded->diags.hasErrors())
      continue;
    std::string text = printRecipe(*loaded->config);
    expectEqual(*loaded->config, *loadText(text)->config, text);
  }
}

TEST(Print, ValuesReadBack) {
  auto round = [](Opt opt, const std::string &text) {
    auto loaded = loadBody(info(opt).path.str() + " = " + text);
    return toRecipeText(*loaded->config, opt);
  };
  EXPECT_EQ(round(Opt::ModelSeqLength, "128256"), "128_256");
  EXPECT_EQ(round(Opt::ModelSeqLength, "4_096"), "4096");
  EXPECT_EQ(round(Opt::ClusterMemory, "81920MiB"), "80GiB");
  EXPECT_EQ(round(Opt::ClusterMemory, "1_000"), "1000");
  EXPECT_EQ(round(Opt::DistDistributedTimeoutMinutes, "1_800s"), "30");
  EXPECT_EQ(round(Opt::DistDistributedTimeoutMinutes, "90s"), "90s");
  EXPECT_EQ(round(Opt::OptimizerLr, "3e-4"), "0.0003");
  EXPECT_EQ(round(Opt::CheckpointSave, "\"a \\\"b\\\" \\\\c\""), "\"a \\\"b\\\" \\\\c\"");
  EXPECT_EQ(round(Opt::SchedulerLrDecayStyle, "\"inverse-square-root\""),
            "\"inverse-square-root\"");
  EXPECT_EQ(round(Opt::ModelRecomputeModules, "[mlp, moe]"), "[mlp, moe]");
  EXPECT_EQ(round(Opt::ModelCudaGraphImpl, "none"), "none");
}

TEST(Print, StepsShowWhatTheyDid) {
  SourceManager sources;
  DiagEngine diags(sources);
  BufferId buffer = sources.addBuffer("r", "recipe r { dist.use_megatron_fsdp = true }");
  std::vector<std::string> texts;
  loadConfig(sources, diags, buffer, {}, [&](Step step, const Config &config) {
    EXPECT_EQ(static_cast<size_t>(step), texts.size());
    texts.push_back(printRecipe(config));
  });
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_EQ(texts[0], "recipe r {\n  dist {\n    use_megatron_fsdp = true\n  }\n}\n");
  EXPECT_NE(texts[1].find("data_parallel_sharding_strategy = optim_grads_params"),
            std::string::npos);
  EXPECT_EQ(texts[1].find("use_distributed_optimizer"), std::string::npos);
  EXPECT_NE(texts[2].find("use_distributed_optimizer = true"), std::string::npos);
  EXPECT_EQ(texts[2], texts[3]);
}

} // namespace
} // namespace shardc::config::test
