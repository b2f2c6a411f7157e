// How layers are divided among the stages of a pipeline.
#include "compiler/model/Stages.h"

#include <gtest/gtest.h>

namespace shardc::model {
namespace {

using Layers = std::vector<int64_t>;
using Fault = StageLayout::Fault;

TEST(StageLayout, DividesEvenly) {
  EXPECT_EQ(divideLayers({.layers = 8, .stages = 4}).layers, (Layers{2, 2, 2, 2}));
  EXPECT_EQ(divideLayers({.layers = 7, .stages = 4}).fault, Fault::Remainder);
}

TEST(StageLayout, CountsEmbeddingAndLossAsLayers) {
  StageRequest request{.layers = 6, .stages = 4, .countsEmbedding = true, .countsLoss = true};
  EXPECT_EQ(divideLayers(request).layers, (Layers{1, 2, 2, 1}));
  request.countsLoss = false;
  request.layers = 3;
  EXPECT_EQ(divideLayers(request).layers, (Layers{0, 1, 1, 1})) << "the embedding alone";
}

TEST(StageLayout, TakesTheNumbersOfTheFirstAndTheLastStage) {
  EXPECT_EQ(divideLayers({.layers = 9, .stages = 4, .first = 1, .last = 2}).layers,
            (Layers{1, 3, 3, 2}));
  EXPECT_EQ(divideLayers({.layers = 9, .stages = 3, .first = 1}).layers, (Layers{1, 4, 4}));
  EXPECT_EQ(divideLayers({.layers = 9, .stages = 3, .first = 2}).fault, Fault::Remainder);
  EXPECT_EQ(divideLayers({.layers = 2, .stages = 4, .first = 1, .last = 1}).fault, Fault::Empty);
}

TEST(StageLayout, MakesNothingOfNumbersBeyondItsLimits) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(divideLayers({.layers = 8, .stages = kHuge, .chunks = 4}).fault, Fault::Empty);
  EXPECT_EQ(divideLayers({.layers = kHuge, .stages = 4, .chunks = kHuge}).fault, Fault::Empty);
  EXPECT_EQ(divideLayers({.layers = kHuge, .stages = 4}).fault, Fault::Remainder);
  EXPECT_EQ(divideLayers({.layers = 8, .stages = 4, .first = kHuge, .last = kHuge}).fault,
            Fault::Remainder);
}

TEST(StageLayout, DividesTheLayersOfStagesAmongTheirChunks) {
  EXPECT_EQ(divideLayers({.layers = 8, .stages = 2, .chunks = 2}).layers, (Layers{2, 2, 2, 2}));
  EXPECT_EQ(divideLayers({.layers = 6, .stages = 2, .chunks = 2}).fault, Fault::Remainder);
  StageRequest request{.layers = 14, .stages = 3, .chunks = 2, .first = 2, .last = 4};
  EXPECT_EQ(divideLayers(request).layers, (Layers{1, 4, 2, 1, 4, 2}));
  request.first = 3;
  request.layers = 15;
  EXPECT_EQ(divideLayers(request).fault, Fault::Chunks);
  request = {.layers = 6, .stages = 2, .chunks = 2, .layout = "Ett|t|t|ttL"};
  EXPECT_EQ(divideLayers(request).layers, (Layers{2, 1, 1, 2}));
}

TEST(StageLayout, ReadsALayout) {
  auto divide = [](const char *text, int64_t layers, int64_t stages) {
    return divideLayers({.layers = layers, .stages = stages, .layout = text});
  };
  EXPECT_EQ(divide("Ettt|ttttL", 7, 2).layers, (Layers{3, 4}));
  EXPECT_EQ(divide("Et*3|(tt|)*2,t*2 L", 9, 4).layers, (Layers{3, 2, 2, 2}));
  EXPECT_EQ(divide("E|t*2|L", 2, 3).layers, (Layers{0, 2, 0}));
  EXPECT_EQ(divide("E((t*2|)*2)*2L", 8, 5).layers, (Layers{2, 2, 2, 2, 0}));
  EXPECT_EQ(divide("Ett||ttL", 4, 3).fault, Fault::Empty);
  for (const char *text :
       {"", "|", ",", "t|tL", "Et|t", "EtE|tL", "Et|tLL", "Et|tm", "Et*|tL", "E(t|tL", "Et)|tL",
        "Et|t|L", "Et|ttL", "tE|tL", "Et*99999999999999999999|L"})
    EXPECT_FALSE(divide(text, *text == '\0' ? 3 : 2, 2).isValid()) << text;
}

} // namespace
} // namespace shardc::model
