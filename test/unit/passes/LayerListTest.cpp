// The recomputation choice of each layer, as text.
#include "compiler/model/LayerList.h"

#include <gtest/gtest.h>

namespace shardc::model {
namespace {

uint32_t bit(RecomputeModule module) { return uint32_t{1} << static_cast<int>(module); }

LayerList read(std::vector<std::string> entries, int64_t layers) {
  return readLayerList(entries, layers);
}

TEST(LayerList, EntriesAreRuns) {
  LayerList all = read({"2*full", "mlp+core_attn", "none"}, 4);
  ASSERT_TRUE(all.isValid()) << all.problem;
  LayerParts modules = {.modules = bit(RecomputeModule::Mlp) | bit(RecomputeModule::CoreAttn)};
  EXPECT_EQ(all.layers,
            (std::vector<LayerParts>{{.isFull = true}, {.isFull = true}, modules, LayerParts()}));
  EXPECT_TRUE(all.layers.back().isNothing());
  EXPECT_FALSE(modules.isNothing());
  EXPECT_TRUE(modules.has(RecomputeModule::Mlp));
  EXPECT_FALSE(modules.has(RecomputeModule::LayerNorm));
}

TEST(LayerList, TextIsShortestAndReadsBack) {
  LayerList all = read({"full", "1*full", "none", "mlp+core_attn", "core_attn+mlp"}, 5);
  ASSERT_TRUE(all.isValid()) << all.problem;
  std::vector<std::string> text = layerListText(all.layers);
  EXPECT_EQ(text, (std::vector<std::string>{"2*full", "none", "2*core_attn+mlp"}));
  EXPECT_EQ(read(text, 5).layers, all.layers);
}

TEST(LayerList, OthersAreRefused) {
  EXPECT_EQ(read({"2*full"}, 3).problem, "its entries have 2 of the model's 3 layers");
  EXPECT_EQ(read({"2*full", "2*none"}, 3).problem,
            "its entries have more layers than the model's 3");
  EXPECT_EQ(read({"9223372036854775807*full"}, 3).problem,
            "its entries have more layers than the model's 3");
  EXPECT_EQ(read({"all"}, 1).problem,
            "'all' names neither 'full', 'none', nor modules joined by '+'");
  for (const char *entry : {"", "+mlp", "mlp+", "mlp+mlp", "mlp+full", "1*", "mlp,mlp"})
    EXPECT_FALSE(read({entry}, 1).isValid()) << entry;
  for (const char *entry :
       {"0*full", "-1*full", "x*full", "*full", " 1*full", "99999999999999999999*full"})
    EXPECT_EQ(read({entry}, 1).problem,
              std::string("'") + entry + "' does not begin with a number of layers");
}

} // namespace
} // namespace shardc::model
