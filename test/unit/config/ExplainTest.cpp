// Explanations: the first line is the value, the rest says where it came from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/config/Explain.h"
#include "compiler/config/Rules.h"
#include "llvm/ADT/StringExtras.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

std::string explain(const Loaded &loaded, llvm::StringRef path) {
  return explainOption(*loaded.config, loaded.sources, path);
}

TEST(Explain, BeginsWithTheValueAndItsPlace) {
  auto loaded = loadBody("optimizer { lr = 0.5 }");
  std::string text = explain(*loaded, "optimizer.lr");
  EXPECT_EQ(text.rfind("optimizer.lr = 0.5\n  test.recipe:2:18\n", 0), 0u) << text;
  EXPECT_NE(text.find("Megatron-LM: --lr"), std::string::npos);
}

TEST(Explain, TellsWhatARuleChangedAndWhy) {
  auto loaded = loadBody("dist.use_megatron_fsdp = true\n ddp.average_in_collective = true");
  std::string text = explain(*loaded, "ddp.average_in_collective");
  for (const char *part :
       {"ddp.average_in_collective = false\n",
        "changed by rule 'fsdp-average-in-collective', because "
        "'dist.use_megatron_fsdp = true'",
        "FSDP handles gradient synchronization differently", "before: true (test.recipe:3:"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
}

TEST(Explain, SaysThatShardcsOwnProductsAreAnotherMatter) {
  EXPECT_NE(explainRule("fsdp-gradient-accumulation-fusion").find("do not depend on this option"),
            std::string::npos);
  EXPECT_NE(explainOption("model.gradient_accumulation_fusion")
                .find("in shardc the plan decides this, not the option"),
            std::string::npos);
}

TEST(Explain, NamesDefaultsFamiliesPresetsAndDerivations) {
  auto loaded = loadBody("model llama { }\n mixed_precision = bf16_mixed");
  EXPECT_NE(explain(*loaded, "train.manual_gc").find("\n  default\n"), std::string::npos);
  EXPECT_NE(explain(*loaded, "model.normalization").find("default of 'model llama'"),
            std::string::npos);
  EXPECT_NE(explain(*loaded, "model.bf16").find("preset"), std::string::npos);
  EXPECT_NE(explain(*loaded, "model.kv_channels").find("derived by rule 'head-size'"),
            std::string::npos);
}

TEST(Explain, TakesAliasesAndPrintsTheCanonicalName) {
  auto loaded = loadBody("train.seed = 7");
  EXPECT_EQ(explain(*loaded, "train.seed").rfind("rng.seed = 7\n", 0), 0u);
  EXPECT_EQ(explain(*loaded, "frobnicate"), "");
}

TEST(Explain, KnowsEveryOptionRuleAndMessage) {
  auto loaded = loadBody("dist.use_megatron_fsdp = true");
  for (const OptionInfo &option : options()) {
    EXPECT_NE(explain(*loaded, option.path), "") << option.path.str();
    EXPECT_NE(explainOption(option.path), "");
  }
  for (const RuleInfo &rule : rules())
    EXPECT_NE(explainRule(rule.id), "") << rule.id.str();
  for (const DiagRow &row : diagTable())
    EXPECT_NE(explainDiagnostic(row.info.id), "");
  EXPECT_EQ(explainRule("frobnicate"), "");
  EXPECT_EQ(explainDiagnostic("frobnicate"), "");
  EXPECT_GE(explainableNames().size(), options().size() + rules().size());
}

TEST(Explain, OlderTextsLeadToTheirRule) {
  EXPECT_NE(explainRule("fsdp-checkpoint-format").find("Megatron-FSDP requires the fsdp_dtensor"),
            std::string::npos);
}

TEST(Explain, DeviationsStandWithTheirRule) {
  EXPECT_NE(explainRule("main-grads-in-fp32").find("deviation: upstream: under FSDP"),
            std::string::npos);
  EXPECT_NE(ruleReference()[6].find("| upstream | does | shardc |"), std::string::npos);
}

TEST(Explain, ListsASectionOrWhatIsNotAtItsDefault) {
  auto loaded = loadBody("optimizer { lr = 0.5 }");
  std::string section = explainAll(*loaded->config, loaded->sources, "optimizer");
  EXPECT_NE(section.find("optimizer.clip_grad = 1.0  // default"), std::string::npos);
  std::string all = explainAll(*loaded->config, loaded->sources, "");
  EXPECT_NE(all.find("optimizer.lr = 0.5"), std::string::npos);
  EXPECT_EQ(all.find("optimizer.clip_grad"), std::string::npos);
}

TEST(Explain, ReferencesHaveARowForEverything) {
  std::string page = llvm::join(optionReference(), "\n");
  for (const OptionInfo &option : options())
    EXPECT_NE(page.find("| `" + option.name.str() + "` |"), std::string::npos) << option.path.str();
  page = llvm::join(ruleReference(), "\n");
  for (const RuleInfo &rule : rules())
    EXPECT_NE(page.find("| `" + rule.id.str() + "` |"), std::string::npos) << rule.id.str();
}

TEST(Explain, FindsARuleByWhatUpstreamPrints) {
  EXPECT_NE(explainText("Megatron-FSDP requires the fsdp_dtensor").find("fsdp-checkpoint-format"),
            std::string::npos);
  EXPECT_NE(explainText("only supports fsdp_dtensor checkpoint").find("fsdp-checkpoint-format"),
            std::string::npos);
  EXPECT_EQ(explainText("no program prints this"), "");
  EXPECT_EQ(explainText("FSDP"), "");
}

/// The reference counts upstream's checks from V01 to V178 (with a V97b), its adjustments to A30.
TEST(Explain, EveryCheckOfUpstreamIsAnsweredOrSaidToBeUndecided) {
  std::string answered = " ";
  for (const RuleInfo &rule : rules())
    answered += rule.upstream.str() + " ";
#define UNDECIDED(upstream, why) answered += std::string(upstream) + " ";
#include "compiler/config/Undecided.def"
  auto expectAnswer = [&](const std::string &number) {
    EXPECT_NE(answered.find(" " + number + " "), std::string::npos) << number;
  };
  for (int i = 1; i <= 178; ++i)
    expectAnswer(fmt::format("V{:02}", i));
  expectAnswer("V97b");
  for (int i = 1; i <= 30; ++i)
    expectAnswer(fmt::format("A{:02}", i));
}

/// Every present or earlier text of upstream leads to its rule, in each of the forms in which it
/// may be searched for.
TEST(Explain, EveryOlderTextFindsItsRule) {
  for (const RuleInfo &rule : rules()) {
    llvm::SmallVector<llvm::StringRef, 4> older;
    rule.older.split(older, " | ", -1, /*KeepEmpty=*/false);
    for (llvm::StringRef text : older)
      EXPECT_TRUE(!text.contains(' ') ||
                  explainText(text).find(rule.id.str() + " (") != std::string::npos)
          << text.str();
  }
}

} // namespace
} // namespace shardc::config::test
