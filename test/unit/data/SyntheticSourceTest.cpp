#include "runtime/data/Sources.h"

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

std::unique_ptr<DataSource> make(uint64_t seed, Split split) {
  Result<std::unique_ptr<DataSource>> source = openSynthetic(1000, 64, seed, split);
  EXPECT_TRUE(source.isOk());
  return std::move(*source);
}

TEST(SyntheticSource, DependsOnSeedSplitAndIndexAlone) {
  std::vector<int64_t> text = textOf(*make(1, Split::Train), 5);
  EXPECT_EQ(text, textOf(*make(1, Split::Train), 5));
  EXPECT_NE(text, textOf(*make(1, Split::Train), 6));
  EXPECT_NE(text, textOf(*make(2, Split::Train), 5));
  EXPECT_NE(text, textOf(*make(1, Split::Valid), 5));
  EXPECT_NE(text, textOf(*make(1, Split::Train), 5 + (int64_t{1} << 32)));
}

TEST(SyntheticSource, DrawsTheSameEverywhere) {
  for (int64_t index : {int64_t{0}, int64_t{5}, int64_t{1} << 33})
    EXPECT_EQ(textOf(*make(1234, Split::Train), index), golden(fmt::format("synthetic.{}", index)));
}

TEST(SyntheticSource, HalfOfTheTokensAreInTheLowestSixteenth) {
  std::unique_ptr<DataSource> source = make(7, Split::Train);
  int64_t low = 0, all = 0;
  for (int64_t i = 0; i < 100; ++i)
    for (int64_t token : textOf(*source, i)) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, 1000);
      low += token <= 62 ? 1 : 0;
      ++all;
    }
  EXPECT_NEAR(static_cast<double>(low) / static_cast<double>(all), 0.5, 0.03);
}

TEST(SyntheticSource, FillsAllArrays) {
  SampleBuffer buffer(64);
  Sample sample = buffer.view();
  ASSERT_OK(make(7, Split::Test)->sample(3, sample));
  EXPECT_EQ(sample.numDocuments, 1);
  EXPECT_EQ(buffer.documentStarts[0], 0);
  EXPECT_EQ(buffer.documentStarts[1], 64);
  EXPECT_EQ(buffer.positionIds[63], 63);
  EXPECT_EQ(buffer.lossMask, std::vector<float>(64, 1.0f));
  EXPECT_TRUE(std::equal(buffer.tokens.begin() + 1, buffer.tokens.end(), buffer.labels.begin()));
}

TEST(SyntheticSource, RefusesImpossibleSizes) {
  EXPECT_FAILS(openSynthetic(0, 8, 1, Split::Train).status(), InvalidInput,
               "vocabulary of 0 tokens");
  EXPECT_FAILS(openSynthetic(10, 0, 1, Split::Train).status(), InvalidInput,
               "sequence length of 0");
  SampleBuffer buffer(64);
  Sample sample = buffer.view();
  EXPECT_FAILS(make(1, Split::Train)->sample(-1, sample), InvalidInput, "no sample -1");
}

} // namespace
} // namespace shardc::data
