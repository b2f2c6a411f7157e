// The division of layers among the stages of a pipeline.
#include "compiler/model/Stages.h"

#include <string>

#include <gtest/gtest.h>

namespace shardc::model {
namespace {

using Layers = std::vector<int64_t>;
using Fault = StageLayout::Fault;

/// A division balanced by time, with seconds for the parts before and after the layers.
Layers balanced(int64_t stages, int64_t chunks, std::vector<double> seconds, double before,
                double behind) {
  return divideLayers({.layers = static_cast<int64_t>(seconds.size()),
                       .stages = stages,
                       .chunks = chunks,
                       .isBalanced = true,
                       .seconds = std::move(seconds),
                       .before = before,
                       .behind = behind})
      .layers;
}

TEST(StageLayout, BalancedByTime) {
  std::vector<double> alike(32, 1.0);
  EXPECT_EQ(balanced(2, 1, alike, 0.1, 2.4), (Layers{17, 15}));
  EXPECT_EQ(balanced(2, 1, alike, 0, 0), (Layers{16, 16}));
  EXPECT_EQ(balanced(4, 1, alike, 0, 2.4), (Layers{9, 9, 8, 6}))
      << "the last stages wait longest for their first microbatch";
  EXPECT_EQ(balanced(3, 1, {1, 1, 1, 1}, 0, 5), (Layers{2, 2, 0})) << "the head alone";
  EXPECT_EQ(balanced(3, 1, {5, 1, 1, 1, 1}, 0, 1), (Layers{1, 2, 2})) << "layers differ";
  EXPECT_EQ(balanced(2, 2, std::vector<double>(8, 1.0), 0, 0.5), (Layers{2, 2, 2, 2}))
      << "equal numbers are no worse";
  EXPECT_EQ(divideLayers({.layers = 2, .stages = 4, .isBalanced = true}).fault, Fault::Empty);
  EXPECT_EQ(divideLayers({.layers = 3, .stages = 4, .isBalanced = true}).layers,
            (Layers{1, 1, 1, 0}));
}

/// Tries all contiguous divisions: none has a shorter longest chunk.
TEST(StageLayout, BalancedIsShortest) {
  uint32_t state = 7;
  auto draw = [&] { return 1 + (state = state * 1664525 + 1013904223) / (1 << 28); };
  for (int round = 0; round < 200; ++round) {
    std::vector<double> seconds(4 + draw() % 5);
    for (double &each : seconds)
      each = draw();
    double before = draw() / 4.0, behind = draw();
    auto longest = [&](const Layers &layers) {
      double most = 0;
      size_t at = 0;
      for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
        double sum = chunk == 0 ? before : chunk == 2 ? behind : 0;
        for (int64_t i = 0; i < layers[chunk]; ++i)
          sum += seconds[at++];
        most = std::max(most, sum);
      }
      return most;
    };
    auto all = static_cast<int64_t>(seconds.size());
    double best = longest({1, 1, all - 2});
    for (int64_t first = 1; first < all; ++first)
      for (int64_t second = 1; first + second <= all; ++second)
        best = std::min(best, longest({first, second, all - first - second}));
    EXPECT_NEAR(longest(balanced(3, 1, seconds, before, behind)), best, 1e-9);
  }
}

TEST(StageLayout, TextOfALayout) {
  EXPECT_EQ(layoutText({17, 1, 0}), "Et*17|t|L");
  EXPECT_EQ(divideLayers({.layers = 18, .stages = 3, .layout = layoutText({17, 1, 0})}).layers,
            (Layers{17, 1, 0}));
}

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
  EXPECT_EQ(divide(std::string(1 << 20, '(').c_str(), 2, 2).problem,
            "more than 64 parentheses are open");
}

} // namespace
} // namespace shardc::model
