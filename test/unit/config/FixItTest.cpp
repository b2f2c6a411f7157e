// Fix-its: once applied, the error is gone and there is no new one; alternatives are not applied.
#include <set>

#include <gtest/gtest.h>

#include "compiler/diag/FixItApply.h"
#include "runtime/base/Io.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

/// Several fix-its may insert at one place, so one round may leave some for the next.
constexpr unsigned kRoundsMax = 6;

size_t numApplicable(const Loaded &loaded) {
  size_t count = 0;
  for (const Diagnostic &message : loaded.messages)
    for (const FixIt &fix : message.fixIts)
      count += fix.kind == FixItKind::Applied;
  return count;
}

std::string fixOnce(const Loaded &loaded, const std::string &path) {
  FixItResult result = applyFixIts(loaded.sources, loaded.messages, /*recommended=*/false);
  for (auto &[buffer, text] : result.texts)
    if (loaded.sources.name(buffer) == path)
      return text;
  return readFile(path, kRecipeBytesMax).isOk() ? *readFile(path, kRecipeBytesMax) : "";
}

/// Applies fix-its until none is left, and returns the last state.
std::unique_ptr<Loaded> fixAll(const std::string &path) {
  auto loaded = loadFile(path);
  for (unsigned round = 0; round < kRoundsMax && numApplicable(*loaded) > 0; ++round) {
    writeText(path, fixOnce(*loaded, path));
    loaded = loadFile(path);
  }
  return loaded;
}

std::string fixText(const std::string &text) {
  std::string path = makeFolder("fix") + "/a.recipe";
  writeText(path, text);
  fixAll(path);
  return *readFile(path, kRecipeBytesMax);
}

TEST(FixIts, EveryAppliedOneEndsItsError) {
  std::string path = makeFolder("all") + "/a.recipe";
  for (const Case &one : allCases()) {
    writeText(path, one.part.text);
    std::set<std::string> repairable;
    auto before = loadFile(path);
    for (const Diagnostic &message : before->messages)
      for (const FixIt &fix : message.fixIts)
        if (fix.kind == FixItKind::Applied)
          repairable.insert(message.id);
    auto after = fixAll(path);
    EXPECT_EQ(numApplicable(*after), 0u) << one.part.text;
    for (const std::string &id : repairable)
      EXPECT_FALSE(after->has(id)) << id << " stays in\n" << *readFile(path, kRecipeBytesMax);
    for (const std::string &id : after->ids(Severity::Error))
      EXPECT_TRUE(before->has(id)) << id << " is new in\n" << *readFile(path, kRecipeBytesMax);
  }
}

TEST(FixIts, EveryAlternativeEndsItsError) {
  std::string path = makeFolder("alternatives") + "/a.recipe";
  for (const Case &one : allCases()) {
    writeText(path, one.part.text);
    auto loaded = loadFile(path);
    for (const Diagnostic &message : loaded->messages)
      for (FixIt fix : message.fixIts) {
        if (fix.kind != FixItKind::Alternative)
          continue;
        Diagnostic chosen = message;
        fix.kind = FixItKind::Applied;
        chosen.fixIts = {fix};
        FixItResult result = applyFixIts(loaded->sources, {chosen}, false);
        ASSERT_EQ(result.texts.size(), 1u) << message.id << " in\n" << one.part.text;
        auto after = loadText(result.texts.begin()->second);
        EXPECT_FALSE(after->has(message.id)) << message.id << " stays in\n"
                                             << result.texts.begin()->second;
      }
  }
}

/// Applies the fix-its of --fix=recommended until none is left.
std::unique_ptr<Loaded> fixRecommended(const std::string &path) {
  auto loaded = loadFile(path);
  for (unsigned round = 0; round < 2 * kRoundsMax; ++round) {
    FixItResult result = applyFixIts(loaded->sources, loaded->messages, /*recommended=*/true);
    if (result.texts.empty())
      break;
    for (auto &[buffer, text] : result.texts)
      writeText(path, text);
    loaded = loadFile(path);
  }
  return loaded;
}

TEST(FixIts, EveryRecommendedOneEndsItsRemarkAndBringsNoError) {
  std::string path = makeFolder("recommended") + "/a.recipe";
  std::set<std::string> ended;
  for (const Case &one : allCases()) {
    writeText(path, one.part.text);
    auto before = loadFile(path);
    std::set<std::string> repairable;
    for (const Diagnostic &message : before->messages)
      for (const FixIt &fix : message.fixIts)
        if (fix.kind == FixItKind::Recommended)
          repairable.insert(message.id);
    if (repairable.empty())
      continue;
    auto after = fixRecommended(path);
    for (const std::string &id : repairable) {
      EXPECT_FALSE(after->has(id)) << id << " stays in\n" << *readFile(path, kRecipeBytesMax);
      ended.insert(id);
    }
    for (const std::string &id : after->ids(Severity::Error))
      EXPECT_TRUE(before->has(id)) << id << " is new in\n" << *readFile(path, kRecipeBytesMax);
  }
  EXPECT_GT(ended.size(), 10u);
}

TEST(FixIts, RecommendedSettingsAreLeftAloneByTheOthers) {
  std::string text = "recipe r {\n  dist.use_megatron_fsdp = true\n  cluster { gpu = h200  "
                     "gpus_per_node = 8 }\n}\n";
  EXPECT_EQ(fixText(text), text);
}

TEST(FixIts, TwoWaysOutAreNotTakenByThemselves) {
  std::string text = "recipe r {\n  dist { use_megatron_fsdp = true  use_torch_fsdp2 = true }\n}\n";
  EXPECT_EQ(fixText(text), text);
  auto loaded = loadText(text);
  EXPECT_EQ(loaded->find("fsdp-and-torch-fsdp2")->fixIts.size(), 2u);
}

TEST(FixIts, ALineOfItsOwnIsRemovedWhole) {
  EXPECT_EQ(
      fixText(
          "recipe r {\n  dist {\n    use_megatron_fsdp = true\n    use_tp_pp_dp_mapping = true\n"
          "  }\n}\n"),
      "recipe r {\n  dist {\n    use_megatron_fsdp = true\n  }\n}\n");
}

TEST(FixIts, AValueIsReplacedWhereItStands) {
  EXPECT_EQ(
      fixText(
          "recipe r {\n  dist.use_megatron_fsdp = true\n  checkpoint { ckpt_format = zarr }\n}\n"),
      "recipe r {\n  dist.use_megatron_fsdp = true\n  checkpoint { ckpt_format = fsdp_dtensor "
      "}\n}\n");
}

TEST(FixIts, ANewLineGoesIntoItsSection) {
  std::string model =
      "  model {\n    recompute_granularity = full // all\n    recompute_num_layers = 1\n  }\n";
  EXPECT_EQ(fixText("recipe r {\n" + model + "}\n"),
            "recipe r {\n  model {\n    recompute_granularity = full // all\n"
            "    recompute_num_layers = 1\n    recompute_method = uniform\n  }\n}\n");
  EXPECT_EQ(
      fixText(
          "recipe r {\n  model { recompute_granularity = full  recompute_num_layers = 1 }\n}\n"),
      "recipe r {\n  model { recompute_granularity = full  recompute_num_layers = 1"
      " recompute_method = uniform }\n}\n");
}

TEST(FixIts, ANewLineBehindACommentStaysOutOfIt) {
  EXPECT_EQ(
      fixText("recipe r {\n  model {\n    recompute_num_layers = 1\n"
              "    recompute_granularity = full // all of it\n  }\n}\n"),
      "recipe r {\n  model {\n    recompute_num_layers = 1\n"
      "    recompute_granularity = full // all of it\n    recompute_method = uniform\n  }\n}\n");
}

TEST(FixIts, WithoutASectionTheLineIsDotted) {
  EXPECT_EQ(fixText("recipe r {\n  model.cuda_graph_impl = full_iteration\n}\n"),
            "recipe r {\n  model.cuda_graph_impl = full_iteration\n"
            "  rerun_state_machine.check_for_nan_in_loss = false\n}\n");
}

TEST(FixIts, MisspeltWordsAreReplaced) {
  EXPECT_EQ(fixText("recipe r {\n  optimizer adma { wieght_decay = 0.5 }\n}\n"),
            "recipe r {\n  optimizer adam { weight_decay = 0.5 }\n}\n");
}

} // namespace
} // namespace shardc::config::test
