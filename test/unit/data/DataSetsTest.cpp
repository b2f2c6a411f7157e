#include "runtime/data/DataSets.h"

#include "runtime/data/GptSource.h"
#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

DataConfig blendOf(std::vector<std::string> paths, std::vector<double> weights = {}) {
  DataConfig config;
  config.sequenceLength = 8;
  config.split = "9,1,0";
  config.samples = {40, 0, 0};
  config.blend = Blend{std::move(paths), std::move(weights)};
  return config;
}

TEST(DataSets, AWeightedBlendIsMegatrons) {
  Result<DataSets> sets = openDataSets(blendOf({fixture("tiny"), fixture("wide")}, {30, 70}));
  ASSERT_OK(sets);
  const DataSource *train = sets->source(Split::Train);
  ASSERT_NE(train, nullptr);
  for (int64_t i = 0; i < train->numSamples(); ++i)
    EXPECT_EQ(textOf(*train, i), golden(fmt::format("run.{}", i))) << i;
  EXPECT_FALSE(hasGolden(fmt::format("run.{}", train->numSamples())));
  EXPECT_EQ(sets->source(Split::Valid), nullptr);
  EXPECT_EQ(sets->source(Split::Test), nullptr);
}

TEST(DataSets, OnePathWithoutWeightIsNoBlend) {
  DataConfig config = blendOf({fixture("tiny")});
  config.split = "1";
  config.samples = {24, 0, 0};
  Result<DataSets> sets = openDataSets(config);
  ASSERT_OK(sets);
  const auto *train = dynamic_cast<const GptSource *>(sets->source(Split::Train));
  ASSERT_NE(train, nullptr);
  EXPECT_EQ(asInts(train->index().shuffle()), golden("gpt.separate.shuffle"));
}

TEST(DataSets, WithoutWeightsSizesAreTheWeights) {
  DataConfig config = blendOf({fixture("tiny"), fixture("wide")});
  config.split = "1";
  config.samples = {std::nullopt, 0, 0};
  Result<DataSets> all = openDataSets(config);
  ASSERT_OK(all);
  EXPECT_EQ(all->source(Split::Train)->numSamples(), 11 + 18); // 90 and 147 tokens
  config.samples = {1000, 0, 0};
  Result<DataSets> capped = openDataSets(config);
  ASSERT_OK(capped);
  EXPECT_EQ(capped->source(Split::Train)->numSamples(), 29);
  config.samples = {7, 0, 0};
  Result<DataSets> some = openDataSets(config);
  ASSERT_OK(some);
  EXPECT_EQ(some->source(Split::Train)->numSamples(), 7);
}

TEST(DataSets, SplitsShareNoDocument) {
  TempFolder folder;
  for (char c = 'a'; c < 'a' + 20; ++c)
    folder.write(std::string("text/") + c, std::string(50, c));
  DataConfig config = blendOf({folder / "text"});
  config.split = "80,10,10";
  config.samples = {100, 10, 10};
  Result<DataSets> sets = openDataSets(config);
  ASSERT_OK(sets);
  auto expectLetters = [&](Split split, char first, char last) {
    for (int64_t i = 0; i < 10; ++i)
      for (int64_t token : textOf(*sets->source(split), i))
        EXPECT_TRUE(token == 256 || (token >= first && token <= last)) << token;
  };
  expectLetters(Split::Train, 'a', 'p');
  expectLetters(Split::Valid, 'q', 'r');
  expectLetters(Split::Test, 's', 't');
}

TEST(DataSets, EachSplitMayHaveABlendOfItsOwn) {
  DataConfig config = blendOf({});
  config.blend.reset();
  config.blendPerSplit[0] = Blend{{fixture("wide")}, {2.0}};
  config.blendPerSplit[1] = Blend{{fixture("tiny"), fixture("wide")}, {1, 1}};
  config.samples = {5, 6, 7};
  Result<DataSets> sets = openDataSets(config);
  ASSERT_OK(sets);
  EXPECT_EQ(sets->source(Split::Train)->numSamples(), 18); // the whole epoch
  EXPECT_EQ(sets->source(Split::Valid)->numSamples(), 6);
  EXPECT_EQ(sets->source(Split::Test), nullptr);
  config.blend = Blend{{fixture("tiny")}, {}};
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput, "exclude each other");
}

TEST(DataSets, WithoutPathsDataAreSynthetic) {
  DataConfig config;
  config.sequenceLength = 16;
  config.vocabSize = 100;
  config.samples = {5, 5, 0};
  Result<DataSets> sets = openDataSets(config);
  ASSERT_OK(sets);
  EXPECT_EQ(sets->source(Split::Train)->numSamples(), DataSource::kUnbounded);
  EXPECT_NE(textOf(*sets->source(Split::Train), 0), textOf(*sets->source(Split::Valid), 0));
  EXPECT_EQ(sets->source(Split::Test), nullptr);
}

TEST(DataSets, SaysWhichPathAndSplitIsWrong) {
  TempFolder folder;
  EXPECT_FAILS(openDataSets(blendOf({folder / "none"})).status(), NotFound,
               "none.bin' nor a text file or folder");
  std::string text = folder.write("a.txt", "hello world, this is one document");
  DataConfig config = blendOf({text});
  config.samples = {4, 4, 0};
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput,
               "the split '9,1,0' gives the valid data none of the 1 documents");
  config.samples = {4, 0, 0};
  config.vocabSize = 256;
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput, "needs a vocabulary of 257");
  config.vocabSize = 0;
  config.samples = {std::nullopt, 0, 0};
  config.sequenceLength = 1000;
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput,
               "too short for one sample of 1001 tokens [data-too-short]");
  config.blend->weights = {1.0};
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput, "a blend with weights has no end");
  config.samples = {INT64_MAX, 0, 0};
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput, "samples are requested");
  config.pathKind = PathKind::Indexed;
  config.samples = {4, 0, 0};
  EXPECT_FAILS(openDataSets(config).status(), NotFound, "a.txt.idx");
}

TEST(DataSets, ABlendMayNotTakeMoreThanIsLaidOut) {
  DataConfig config = blendOf({fixture("tiny"), fixture("wide")}, {1, 1e-9});
  config.indexBytesMax = 100;
  EXPECT_FAILS(openDataSets(config).status(), Exhausted, "limit of 100 bytes");
  config.midLevelDatasetSurplus = -1;
  EXPECT_FAILS(openDataSets(config).status(), InvalidInput, "'mid_level_dataset_surplus' is -1");
}

TEST(DataSets, CountsTheSamplesOfARun) {
  RunLength length{.trainIters = 100,
                   .globalBatch = 8,
                   .evalInterval = 30,
                   .evalIters = 2,
                   .evalGlobalBatch = 4};
  auto samples = samplesOfRun(length);
  EXPECT_EQ(samples[0], 800);
  EXPECT_EQ(samples[1], 4 * 2 * 4);
  EXPECT_EQ(samples[2], 8);
  length.evaluatesWhole = true;
  EXPECT_EQ(samplesOfRun(length)[1], std::nullopt);
  length.evalInterval = 0;
  EXPECT_EQ(samplesOfRun(length)[1], 0);
  EXPECT_EQ(samplesOfRun({.trainIters = INT64_MAX, .globalBatch = 8})[0], INT64_MAX);
}

TEST(DataSets, CountsTheSamplesOfOnePass) {
  DataConfig config;
  config.sequenceLength = 8;
  config.split = "1,1";
  config.samples = {1000, 1000, 0}; // many passes, which must not affect the result
  config.blend = Blend{{fixture("tiny")}, {}};
  int64_t passes = 0;
  for (Split split : {Split::Train, Split::Valid}) {
    Result<int64_t> samples = samplesOfPass(config, split);
    ASSERT_OK(samples);
    EXPECT_GT(*samples, 0);
    passes += *samples;
  }
  EXPECT_LT(passes, 1000);
  EXPECT_FAILS(samplesOfPass(config, Split::Test).status(), InvalidInput, "there are no test data");
  config.blend->weights = {1};
  EXPECT_FAILS(samplesOfPass(config, Split::Train).status(), InvalidInput, "has no end");
  config.blend.reset();
  config.vocabSize = 10;
  EXPECT_FAILS(samplesOfPass(config, Split::Train).status(), InvalidInput,
               "synthetic train data have no end");
}

TEST(DataSets, MakesBlendsOfTheListsOfARecipe) {
  DataConfig config;
  ASSERT_OK(setBlends({true, {"a"}, {}, {}, {}}, config));
  EXPECT_FALSE(config.blend);
  ASSERT_OK(setBlends({false, {"2", "a", "1", "b"}, {"c"}, {"d"}, {}}, config));
  EXPECT_EQ(config.blend->paths, (std::vector<std::string>{"a", "b"}));
  config.blend.reset();
  ASSERT_OK(setBlends({false, {}, {}, {"d"}, {"e"}}, config));
  EXPECT_FALSE(config.blend);
  EXPECT_EQ(config.blendPerSplit[0]->paths, std::vector<std::string>{"d"});
  EXPECT_EQ(config.blendPerSplit[1]->paths, std::vector<std::string>{"e"});
  EXPECT_FALSE(config.blendPerSplit[2]);
}

} // namespace
} // namespace shardc::data
