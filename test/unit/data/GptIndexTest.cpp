#include "runtime/data/GptIndex.h"

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

std::vector<int64_t> flat(std::span<const GptIndex::TokenPosition> positions) {
  std::vector<int64_t> result;
  for (GptIndex::TokenPosition position : positions) {
    result.push_back(position.document);
    result.push_back(position.offset);
  }
  return result;
}

std::vector<int32_t> lengthsOf(const std::string &name) {
  std::vector<int64_t> values = golden(name + ".lengths");
  return {values.begin(), values.end()};
}

TEST(GptIndex, OrdersSamplesAsMegatron) {
  std::vector<std::string> cases = goldenNames("gpt.", ".spec");
  EXPECT_EQ(cases.size(), 12u);
  for (const std::string &name : cases) {
    SCOPED_TRACE(name);
    std::vector<int64_t> values = golden("gpt." + name + ".spec");
    GptIndexSpec spec;
    spec.firstSequence = values[0];
    spec.endSequence = values[1];
    spec.sequenceLength = values[2];
    if (values[3] >= 0)
      spec.numSamples = values[3];
    spec.seed = static_cast<uint32_t>(values[4]);
    spec.dropLastPartial = values[5] != 0;
    Result<GptIndex> index = GptIndex::build(lengthsOf("gpt." + name), spec, name);
    ASSERT_OK(index);
    EXPECT_EQ(index->numEpochs(), values[6]);
    EXPECT_EQ(index->separateFinalEpoch(), values[7] != 0);
    EXPECT_EQ(asInts(index->documents()), golden("gpt." + name + ".documents"));
    EXPECT_EQ(flat(index->positions()), golden("gpt." + name + ".places"));
    EXPECT_EQ(asInts(index->shuffle()), golden("gpt." + name + ".shuffle"));
  }
}

TEST(GptIndex, OtherSeedsGiveOtherOrders) {
  std::vector<int32_t> lengths = lengthsOf("gpt.large");
  GptIndexSpec spec{.endSequence = 500, .sequenceLength = 64};
  Result<GptIndex> one = GptIndex::build(lengths, spec, "x");
  Result<GptIndex> same = GptIndex::build(lengths, spec, "x");
  spec.seed = 1235;
  Result<GptIndex> other = GptIndex::build(lengths, spec, "x");
  ASSERT_TRUE(one.isOk() && same.isOk() && other.isOk());
  EXPECT_EQ(asInts(one->shuffle()), asInts(same->shuffle()));
  EXPECT_NE(asInts(one->shuffle()), asInts(other->shuffle()));
}

TEST(GptIndex, APartialSampleMayEndInAnEmptySequence) {
  std::vector<int32_t> lengths = {0};
  lengths.push_back(5);
  for (uint32_t seed = 0; seed < 4; ++seed) { // both orders occur
    GptIndexSpec spec{.endSequence = 2, .sequenceLength = 3, .seed = seed};
    spec.dropLastPartial = false;
    Result<GptIndex> index = GptIndex::build(lengths, spec, "x");
    ASSERT_OK(index);
    EXPECT_EQ(index->numSamples(), 2);
  }
}

TEST(GptIndex, TooFewTokensForASampleMakeNone) {
  std::vector<int32_t> lengths = {3};
  Result<GptIndex> index = GptIndex::build(lengths, {.endSequence = 1, .sequenceLength = 3}, "x");
  ASSERT_OK(index);
  EXPECT_EQ(index->numSamples(), 0);
}

TEST(GptIndex, RefusesWhatCannotBeOrdered) {
  std::vector<int32_t> lengths = {0, 0, 10};
  GptIndexSpec spec{.endSequence = 2, .sequenceLength = 4};
  EXPECT_FAILS(GptIndex::build(lengths, spec, "x").status(), InvalidInput,
               "the 2 sequences of 'x' contain no tokens");
  spec.endSequence = 3;
  spec.sequenceLength = 0;
  EXPECT_FAILS(GptIndex::build(lengths, spec, "x").status(), InvalidInput, "sequence length of 0");
  spec.sequenceLength = 4;
  spec.numSamples = INT64_MAX / 2;
  EXPECT_FAILS(GptIndex::build(lengths, spec, "x").status(), Exhausted, "more than can be counted");
  spec.numSamples = int64_t{1} << 40;
  EXPECT_FAILS(GptIndex::build(lengths, spec, "x").status(), Exhausted,
               "needs more than the limit");
  spec.numSamples = 1000;
  spec.bytesMax = 1000;
  EXPECT_FAILS(GptIndex::build(lengths, spec, "x").status(), Exhausted, "limit of 1000 bytes");
}

} // namespace
} // namespace shardc::data
