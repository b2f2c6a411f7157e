#include "runtime/data/Blend.h"

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

TEST(Split, DividesDocumentsAsMegatron) {
  std::vector<std::string> cases = goldenNames("split.", "");
  EXPECT_EQ(cases.size(), 56u);
  for (const std::string &name : cases) {
    size_t dot = name.rfind('.');
    Result<SplitShares> shares = parseSplit(name.substr(0, dot));
    ASSERT_OK(shares);
    std::vector<int64_t> bounds;
    for (const std::optional<SplitRange> &share : *shares) {
      auto [begin, end] = share ? splitDocuments(*share, std::stoll(name.substr(dot + 1)))
                                : std::pair<int64_t, int64_t>(-1, -1);
      bounds.push_back(begin);
      bounds.push_back(end);
    }
    EXPECT_EQ(bounds, golden("split." + name)) << name;
  }
}

TEST(Split, TakesListsAndShortForms) {
  for (const char *text : {"[0.9, 0.1, 0]", " 9 , 1 ", "90,10,0.0"}) {
    Result<SplitShares> shares = parseSplit(text);
    ASSERT_OK(shares);
    EXPECT_EQ(splitDocuments(*(*shares)[0], 10).second, 9);
    EXPECT_FALSE((*shares)[2].has_value());
  }
}

TEST(Split, RefusesWhatIsNoSplit) {
  EXPECT_FAILS(parseSplit("").status(), InvalidInput, "'' is not a number in the split ''");
  EXPECT_FAILS(parseSplit("9;1").status(), InvalidInput, "'9;1' is not a number");
  EXPECT_FAILS(parseSplit("1,,1").status(), InvalidInput, "as in '969,30,1'");
  EXPECT_FAILS(parseSplit("1,2,3,4").status(), InvalidInput, "a split has 4 weights");
  EXPECT_FAILS(parseSplit("1,-2").status(), InvalidInput, "-2 is not a weight");
  EXPECT_FAILS(parseSplit("0,0,0").status(), InvalidInput, "add up to 0");
  EXPECT_FAILS(parseSplit("1,nan").status(), InvalidInput, "'nan' is not a number");
  EXPECT_FAILS(parseSplit("[1,2").status(), InvalidInput, "'[1' is not a number");
  EXPECT_FAILS(makeSplit(std::vector<double>{}).status(), InvalidInput, "a split has 0 weights");
  EXPECT_FAILS(makeSplit(std::vector<double>{1e308, 1e308}).status(), InvalidInput,
               "add up to inf");
}

TEST(Blend, MixesByWeightAsMegatron) {
  for (const std::string &name : goldenNames("blend.", ".weights")) {
    std::vector<double> weights = goldenNumbers("blend." + name + ".weights");
    std::vector<int64_t> datasets = golden("blend." + name + ".datasets");
    BlendIndex index =
        blendByWeight(normalizeWeights(weights), static_cast<int64_t>(datasets.size()));
    EXPECT_EQ(asInts(index.dataset), datasets) << name;
    EXPECT_EQ(asInts(index.sample), golden("blend." + name + ".samples")) << name;
  }
}

TEST(Blend, MixesWholeDatasetsAsMegatron) {
  for (const std::string &name : goldenNames("blend_all.", ".sizes")) {
    BlendIndex index = blendAll(golden("blend_all." + name + ".sizes"));
    EXPECT_EQ(asInts(index.dataset), golden("blend_all." + name + ".datasets")) << name;
    EXPECT_EQ(asInts(index.sample), golden("blend_all." + name + ".samples")) << name;
  }
}

TEST(Blend, RoundsSharesUpTwice) {
  EXPECT_EQ(samplesOfDataset(40, 0.3, 0.0), 12);
  EXPECT_EQ(samplesOfDataset(40, 0.3, 0.005), 13);
  EXPECT_EQ(samplesOfDataset(0, 0.3, 0.005), 0);
}

TEST(Blend, ReadsFlatLists) {
  Result<Blend> weighted = parseBlend(std::vector<std::string>{"30", "a", "0.7", " b "});
  ASSERT_OK(weighted);
  EXPECT_EQ(weighted->paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weighted->weights, (std::vector<double>{30, 0.7}));
  Result<Blend> plain = parseBlend(std::vector<std::string>{"a", "b"});
  ASSERT_OK(plain);
  EXPECT_EQ(plain->paths.size(), 2u);
  EXPECT_TRUE(plain->weights.empty());
  Result<Blend> odd = parseBlend(std::vector<std::string>{"30", "40", "a"});
  ASSERT_OK(odd);
  EXPECT_EQ(odd->paths.size(), 3u);
}

TEST(Blend, RefusesWhatIsNoBlend) {
  using List = std::vector<std::string>;
  EXPECT_FAILS(parseBlend(List{}).status(), InvalidInput, "names no dataset");
  EXPECT_FAILS(parseBlend(List{"1", "a", "x", "b"}).status(), InvalidInput,
               "the blend has 'x' instead of the weight of 'b'");
  EXPECT_FAILS(parseBlend(List{"0", "a"}).status(), InvalidInput, "gives 'a' the weight 0");
  EXPECT_FAILS(parseBlend(List{"1", "a", "-1", "b"}).status(), InvalidInput, "the weight -1");
  EXPECT_FAILS(parseBlend(List{" "}).status(), InvalidInput, "empty path");
  EXPECT_FAILS(checkBlend({{"a", "b"}, {1.0}}), InvalidInput, "2 datasets but 1 weights");
  EXPECT_FAILS(checkBlend({List(40000, "a"), {}}), InvalidInput, "40000 datasets");
}

} // namespace
} // namespace shardc::data
