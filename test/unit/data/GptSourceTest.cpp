#include "runtime/data/GptSource.h"

#include <filesystem>

#include "runtime/data/IndexedDataset.h"
#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

std::shared_ptr<const TokenStore> openStore(const std::string &prefix) {
  Result<IndexedDataset> dataset = IndexedDataset::open(prefix);
  EXPECT_TRUE(dataset.isOk()) << dataset.status().message();
  return std::make_shared<IndexedDataset>(std::move(*dataset));
}

GptIndexSpec wholeTiny(bool dropLastPartial) {
  GptIndexSpec spec{.endSequence = 13, .sequenceLength = 8, .seed = 7};
  spec.dropLastPartial = dropLastPartial;
  return spec;
}

void expectGoldens(const std::string &name, bool dropLastPartial, DocumentOptions options) {
  SCOPED_TRACE(name);
  options.endToken = 256;
  auto source = GptSource::create(openStore(fixture("tiny")), wholeTiny(dropLastPartial), options,
                                  /*vocabSize=*/257);
  ASSERT_OK(source);
  for (int64_t i = 0; i < (*source)->numSamples(); ++i) {
    SampleBuffer buffer(8);
    Sample sample = buffer.view();
    ASSERT_OK((*source)->sample(i, sample));
    std::string prefix = fmt::format("sample.{}.{}.", name, i);
    EXPECT_EQ(asInts(buffer.tokens), golden(prefix + "tokens"));
    EXPECT_EQ(asInts(buffer.labels), golden(prefix + "labels"));
    EXPECT_EQ(asInts(buffer.lossMask), golden(prefix + "loss"));
    EXPECT_EQ(asInts(buffer.positionIds), golden(prefix + "positions"));
    auto numStarts = static_cast<size_t>(sample.numDocuments) + 1;
    EXPECT_EQ(asInts(std::span(buffer.documentStarts).first(numStarts)), golden(prefix + "starts"));
    for (size_t rest = numStarts; rest < buffer.documentStarts.size(); ++rest)
      EXPECT_EQ(buffer.documentStarts[rest], 8);
  }
  EXPECT_FALSE(hasGolden(fmt::format("sample.{}.{}.tokens", name, (*source)->numSamples())));
}

TEST(GptSource, SamplesAreMegatrons) {
  expectGoldens("plain", true, {});
  expectGoldens("positions", true, {.resetPositionIds = true});
  expectGoldens("attention", true, {.resetAttentionMask = true});
  DocumentOptions all{.resetPositionIds = true, .resetAttentionMask = true, .eodMaskLoss = true};
  expectGoldens("all", true, all);
  expectGoldens("partial", false, all);
}

TEST(GptSource, PadsDoNotCount) {
  DocumentOptions options{.padToken = 256};
  auto source =
      GptSource::create(openStore(fixture("tiny")), wholeTiny(true), options, /*vocabSize=*/257);
  ASSERT_OK(source);
  int masked = 0;
  for (int64_t i = 0; i < (*source)->numSamples(); ++i) {
    SampleBuffer buffer(8);
    Sample sample = buffer.view();
    ASSERT_OK((*source)->sample(i, sample));
    std::vector<int64_t> labels = golden(fmt::format("sample.plain.{}.labels", i));
    for (size_t k = 0; k < 8; ++k) {
      EXPECT_NE(buffer.tokens[k], 256);
      EXPECT_EQ(buffer.lossMask[k], labels[k] == 256 ? 0.0f : 1.0f);
      EXPECT_EQ(buffer.labels[k], labels[k] == 256 ? 0 : labels[k]);
      masked += labels[k] == 256 ? 1 : 0;
    }
  }
  EXPECT_GT(masked, 0);
}

TEST(GptSource, OptionalArraysMayBeAbsent) {
  auto source = GptSource::create(openStore(fixture("tiny")), wholeTiny(true), {}, 0);
  ASSERT_OK(source);
  SampleBuffer buffer(8);
  Sample sample{buffer.tokens, buffer.labels, buffer.lossMask};
  ASSERT_OK((*source)->sample(0, sample));
  EXPECT_EQ(asInts(buffer.tokens), golden("sample.plain.0.tokens"));
}

TEST(GptSource, RefusesWhatIsNotThere) {
  auto source = GptSource::create(openStore(fixture("tiny")), wholeTiny(true), {}, 0);
  ASSERT_OK(source);
  SampleBuffer buffer(8);
  Sample sample = buffer.view();
  EXPECT_FAILS((*source)->sample(-1, sample), InvalidInput, "there is no sample -1");
  EXPECT_FAILS((*source)->sample(11, sample), InvalidInput, "has 11 samples");
}

TEST(GptSource, TokensOutsideTheVocabularyAreRefused) {
  auto source =
      GptSource::create(openStore(fixture("tiny")), wholeTiny(true), {}, /*vocabSize=*/200);
  ASSERT_OK(source);
  Status status;
  for (int64_t i = 0; status.isOk() && i < (*source)->numSamples(); ++i) {
    SampleBuffer buffer(8);
    Sample sample = buffer.view();
    status = (*source)->sample(i, sample);
  }
  EXPECT_FAILS(status, InvalidInput, "outside of the vocabulary of 200");
}

TEST(GptSource, OptionsAtDocumentEndsNeedAnEndToken) {
  DocumentOptions options{.eodMaskLoss = true};
  EXPECT_FAILS(GptSource::create(openStore(fixture("tiny")), wholeTiny(true), options, 0).status(),
               InvalidInput, "no token ends documents");
  options.endToken = 300;
  EXPECT_FAILS(
      GptSource::create(openStore(fixture("tiny")), wholeTiny(true), options, 257).status(),
      InvalidInput, "the token 300 that ends documents");
}

TEST(GptSource, AFileThatShrinksIsAMessage) {
  TempFolder folder;
  folder.write("tiny.idx", contentsOf(fixture("tiny.idx")));
  folder.write("tiny.bin", contentsOf(fixture("tiny.bin")));
  auto source = GptSource::create(openStore(folder / "tiny"), wholeTiny(true), {}, 0);
  ASSERT_OK(source);
  std::filesystem::resize_file(folder / "tiny.bin", 0);
  SampleBuffer buffer(8);
  Sample sample = buffer.view();
  EXPECT_FAILS((*source)->sample(0, sample), InvalidInput,
               "it was changed while in use [data-changed]");
}

} // namespace
} // namespace shardc::data
