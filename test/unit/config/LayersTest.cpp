// Kinds and the data, weights and options beside them, in layers of different strength.
#include <gtest/gtest.h>

#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

/// A recipe over a base, both in a new folder, and settings over both.
std::unique_ptr<Loaded> loadLayers(const std::string &base, const std::string &body,
                                   std::vector<std::string> sets = {}) {
  const std::string folder = makeFolder("layers");
  const std::string model = "  model llama { num_layers = 2  hidden_size = 64  "
                            "num_attention_heads = 4  vocab_size = 512 }\n";
  writeText(folder + "/base.recipe", "recipe base {\n" + model + base + "\n}\n");
  writeText(folder + "/mine.recipe", "recipe mine extends \"base.recipe\" {\n" + body + "\n}\n");
  LoadOptions options;
  options.sets = std::move(sets);
  return loadFile(folder + "/mine.recipe", options);
}

DatasetKind kindOf(const Loaded &loaded) {
  return loaded.config->getEnum<DatasetKind>(Opt::DatasetKind);
}

/// The kind follows from the data, as in a recipe that extends one of those that come with shardc.
TEST(Layers, DataReplaceSyntheticDataBelow) {
  auto blend = loadLayers(
      "dataset synthetic {}",
      R"(dataset { blend = ["30", "data/books", "70", "data/web"]  split = "969,30,1" })");
  EXPECT_EQ(kindOf(*blend), DatasetKind::Indexed);
  EXPECT_TRUE(blend->ids(Severity::Error).empty());
  for (const char *named : {"data_path", "train_data_path"})
    EXPECT_EQ(kindOf(*loadLayers("dataset synthetic {}",
                                 "dataset." + std::string(named) + " = [\"a.txt\"]")),
              DatasetKind::Text);
  EXPECT_EQ(kindOf(*loadLayers("dataset synthetic {}", "", {"dataset.data_path=a_document"})),
            DatasetKind::Indexed);
  // A layer in between may ask for them again.
  EXPECT_EQ(kindOf(*loadLayers(R"(dataset { data_path = ["a.txt"] })", "dataset synthetic {}",
                               {"dataset.data_path=b.txt"})),
            DatasetKind::Text);
}

TEST(Layers, TheKindIsThatOfTheFilesOrAskedFor) {
  const std::string folder = makeFolder("kinds");
  auto kind = [&](const std::string &name) {
    auto loaded =
        loadLayers("dataset synthetic {}", "dataset.data_path = [\"" + folder + "/" + name + "\"]");
    EXPECT_EQ(loaded->has("data-kind-unknown"), !loaded->config->has(Opt::DatasetKind));
    return loaded->config->has(Opt::DatasetKind) ? std::optional(kindOf(*loaded)) : std::nullopt;
  };
  EXPECT_EQ(kind("chat"), std::nullopt);
  writeText(folder + "/chat.idx", "");
  EXPECT_EQ(kind("chat"), DatasetKind::Indexed);
  writeText(folder + "/chat.mask.idx", "");
  EXPECT_EQ(kind("chat"), DatasetKind::Packed);
  EXPECT_EQ(kind("chat.idx"), DatasetKind::Packed);
  writeText(folder + "/words", "");
  EXPECT_EQ(kind("words"), DatasetKind::Text);
  EXPECT_EQ(kind("later.jsonl"), DatasetKind::Text);
}

/// Adapters and trained weights need data, whatever is below them.
TEST(Layers, WeightsDoNotMeetSyntheticDataBelow) {
  const char *weights = "checkpoint.pretrained_checkpoint = \"weights\"";
  EXPECT_TRUE(loadLayers("dataset synthetic {}", weights)->has("pretrained-without-data"));
  EXPECT_TRUE(
      loadLayers("dataset synthetic {}", "", {"checkpoint.load=w", "checkpoint.finetune=true"})
          ->has("pretrained-without-data"));
  EXPECT_TRUE(loadLayers("dataset synthetic {}",
                         std::string("dataset { data_path = [\"data/chat\"] }\n") + weights)
                  ->has("data-kind-unknown"));
  // To measure speed, the same layer or a stronger one asks for random tokens.
  EXPECT_TRUE(loadLayers("", std::string("dataset synthetic {}\n") + weights)
                  ->ids(Severity::Error)
                  .empty());
  EXPECT_TRUE(loadLayers(weights, "", {"dataset.kind=synthetic"})->ids(Severity::Error).empty());
}

TEST(Layers, SyntheticDataReplaceDataBelowAndSaySo) {
  auto loaded = loadLayers(R"(dataset text { data_path = ["a.txt"] })", "dataset synthetic {}");
  EXPECT_TRUE(loaded->has("data-replaced"));
  EXPECT_TRUE(loaded->ids(Severity::Error).empty());
  EXPECT_FALSE(loaded->config->has(Opt::DatasetDataPath));
}

TEST(Layers, SyntheticDataBesideDataAreAnError) {
  EXPECT_TRUE(
      loadLayers("", R"(dataset synthetic { data_path = ["a.txt"] })")->has("synthetic-with-data"));
  EXPECT_TRUE(loadLayers("", "", {"dataset.kind=synthetic", "dataset.blend=a"})
                  ->has("synthetic-with-data"));
  EXPECT_TRUE(loadLayers("", R"(dataset.valid_data_path = ["a.txt"])")->has("synthetic-with-data"));
}

/// A setting that is dead beside what is below it is a warning; one that a stronger layer left
/// behind is a remark.
TEST(Layers, OptionsWithoutEffectAreWarningsUnlessLeftBehind) {
  struct Pair {
    const char *chooses, *option;
  };
  for (const Pair &pair : {Pair{"optimizer adam {}", "optimizer.muon_momentum = 0.9"},
                           Pair{"optimizer lion {}", "optimizer.adam_beta1 = 0.8"},
                           Pair{"scheduler cosine {}", "scheduler.lr_wsd_decay_iters = 3"},
                           Pair{"mixed_precision = bf16_mixed", "mixed_precision.fp8_margin = 2"},
                           Pair{"model llama { qk_layernorm = false }",
                                "optimizer.apply_wd_to_qk_layernorm = true"}}) {
    EXPECT_TRUE(loadLayers(pair.chooses, pair.option)->has("option-without-effect")) << pair.option;
    auto left = loadLayers(pair.option, pair.chooses);
    EXPECT_FALSE(left->has("option-without-effect")) << pair.option;
    EXPECT_TRUE(left->has("option-left-behind")) << pair.option;
  }
}

TEST(Layers, AdaptersNeedTheirScheme) {
  EXPECT_TRUE(loadLayers("", "peft { rank = 8  alpha = 16 }")->has("peft-without-scheme"));
  auto off = loadLayers("peft lora { rank = 8 }", "peft = none");
  EXPECT_FALSE(off->has("peft-without-scheme"));
}

} // namespace
} // namespace shardc::config::test
