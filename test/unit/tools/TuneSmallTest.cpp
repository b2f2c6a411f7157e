// The small model that `shardc tune` compiles in place of one with more layers, to estimate its
// cost.
#include "compiler/tools/TuneSmall.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"

namespace shardc::tools {
namespace {

PartCost layerOf(int64_t kept) {
  PartCost cost;
  cost.keptBytes = kept;
  return cost;
}

BodyCost bodyOf(const std::vector<int64_t> &kept) {
  BodyCost cost;
  for (int64_t bytes : kept) {
    cost.layers.push_back(layerOf(bytes));
    cost.times.seconds.push_back(static_cast<double>(bytes));
  }
  return cost;
}

config::Config configWith(const std::string &model) {
  SourceManager sources;
  DiagEngine diags(sources);
  BufferId recipe = sources.addBuffer(
      "x.recipe", "recipe x { model mixtral { num_query_groups = 2 " + model + " } }");
  std::optional<config::Config> config = config::loadConfig(sources, diags, recipe, {});
  EXPECT_TRUE(config.has_value());
  return *config;
}

bool has(const std::vector<std::string> &sets, const std::string &set) {
  return std::ranges::find(sets, set) != sets.end();
}

TEST(TuneSmall, KeepsOneLayerOfEachKindAndNeighbour) {
  // Three layers without experts, seven with experts; every fourth layer has no window.
  config::Config config =
      configWith("num_layers = 10 num_attention_heads = 4 hidden_size = 32 num_moe_experts = 4 "
                 "window_size = [63, 0] moe_layer_freq = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1] "
                 "window_attn_skip_freq = [4]");
  BodyCost whole = bodyOf({1, 1, 1, 2, 2, 2, 2, 2, 2, 2});
  SmallModel small(whole, config);
  ASSERT_TRUE(small.isSmaller());
  std::vector<std::string> sets = small.sets(Layout(), {.ranks = 8});
  EXPECT_TRUE(has(sets, "model.num_layers=6"));
  EXPECT_TRUE(has(sets, "model.moe_layer_freq=[0,0,0,1,1,1]"));
  EXPECT_TRUE(has(sets, "model.window_attn_skip_freq=[1,1,1,0,1,1]"));
  EXPECT_TRUE(has(sets, "train.global_batch_size=8"));
  std::optional<BodyCost> grown = small.grown(bodyOf({1, 1, 1, 2, 2, 2}));
  ASSERT_TRUE(grown.has_value());
  EXPECT_TRUE(grown->hasSameParts(whole));
  EXPECT_FALSE(small.grown(bodyOf({1, 1, 2, 2, 2})).has_value());
}

TEST(TuneSmall, HasThreeLayersWhereAllAreAlike) {
  config::Config config = configWith("num_layers = 12 num_attention_heads = 4 hidden_size = 32");
  BodyCost whole = bodyOf(std::vector<int64_t>(12, 5));
  SmallModel small(whole, config);
  EXPECT_TRUE(has(small.sets(Layout(), {.ranks = 2}), "model.num_layers=3"));
  EXPECT_TRUE(small.grown(bodyOf({5, 5, 5}))->hasSameParts(whole));
  // If all layers differ, none can be left out.
  EXPECT_FALSE(SmallModel(bodyOf({1, 2, 3, 4}), config).isSmaller());
  EXPECT_FALSE(SmallModel(bodyOf({1}), config).isSmaller());
}

} // namespace
} // namespace shardc::tools
