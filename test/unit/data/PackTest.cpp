// Packs: the rows that share a pack, the files, and the resulting samples. The counts of first-fit
// decreasing were printed by Megatron-Bridge's algorithms.py at 067f987d.
#include <algorithm>
#include <fstream>

#include "runtime/data/DataSets.h"
#include "runtime/data/PackFiles.h"
#include "runtime/data/Packing.h"
#include "runtime/data/Sources.h"
#include "test/unit/data/TestData.h"
#include "test/unit/host/AllocationCount.h"

namespace shardc::data {
namespace {

const std::vector<int32_t> kRowLengths = {
    42, 20, 51, 84, 7,  10, 69, 13, 47, 75, 8,  65, 28, 5,  12, 56, 54, 9,  31, 12,
    71, 55, 8,  73, 16, 29, 81, 81, 75, 8,  74, 75, 51, 7,  29, 6,  72, 18, 38, 54,
    19, 70, 16, 74, 40, 72, 88, 24, 14, 75, 74, 82, 25, 48, 13, 71, 92, 9,  73, 8};

using Packs = std::vector<std::vector<uint32_t>>;

/// Sums of the lengths of packs, in order; fails unless each row is in one pack and fits.
std::vector<int64_t> sumsOf(const Packs &packs, int64_t capacity) {
  std::vector<int64_t> sums;
  std::vector<uint32_t> seen;
  for (const std::vector<uint32_t> &rows : packs) {
    int64_t sum = 0;
    for (uint32_t row : rows)
      sum += kRowLengths[row];
    EXPECT_LE(sum, capacity);
    EXPECT_GT(sum, 0);
    sums.push_back(sum);
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(seen);
  for (uint32_t row = 0; row < seen.size(); ++row)
    EXPECT_EQ(seen[row], row);
  EXPECT_EQ(seen.size(), kRowLengths.size());
  std::ranges::sort(sums);
  return sums;
}

TEST(Packing, FirstFitDecreasingIsMegatronBridges) {
  auto packs = packRows(kRowLengths, 128, PackingKind::FirstFit, 1234);
  ASSERT_OK(packs);
  EXPECT_EQ(sumsOf(*packs, 128),
            (std::vector<int64_t>{65,  69,  70,  115, 123, 123, 126, 126, 126, 127, 128,
                                  128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128}));
  EXPECT_EQ(*packRows(kRowLengths, 128, PackingKind::FirstFit, 1234), *packs);
  EXPECT_NE(*packRows(kRowLengths, 128, PackingKind::FirstFit, 1235), *packs);
}

TEST(Packing, BalancedHasEqualCosts) {
  auto cost = [&](const Packs &packs) {
    std::vector<int64_t> costs;
    for (const std::vector<uint32_t> &rows : packs)
      costs.push_back(attentionCost(kRowLengths, rows));
    auto [least, most] = std::ranges::minmax(costs);
    return static_cast<double>(most) / static_cast<double>(least);
  };
  // The capacity is twice the rows' length: otherwise there is no choice.
  auto first = packRows(kRowLengths, 512, PackingKind::FirstFit, 7);
  auto balanced = packRows(kRowLengths, 512, PackingKind::Balanced, 7);
  ASSERT_OK(first);
  ASSERT_OK(balanced);
  sumsOf(*balanced, 512);
  EXPECT_LE(balanced->size(), first->size() + 1);
  EXPECT_LT(cost(*balanced), 1.3);
  EXPECT_GT(cost(*first), 1.5);
}

TEST(Packing, RefusesRowsThatDoNotFit) {
  for (int32_t length : {0, 92})
    EXPECT_EQ(packRows(std::vector<int32_t>{5, length}, 91, PackingKind::Balanced, 1)
                  .status()
                  .report()
                  .id,
              "data-refused");
  auto alone = packRows(kRowLengths, 92, PackingKind::None, 1);
  ASSERT_OK(alone);
  EXPECT_EQ(alone->size(), kRowLengths.size());
}

/// Two packs: of rows [1 2 3] and [4 5], and of [6 7 8 9].
std::string writePacks(const TempFolder &folder, const std::string &manifest = {}) {
  std::string prefix = folder.path() + "/packs";
  auto writer = PackWriter::create(prefix, 100);
  EXPECT_TRUE(writer.isOk());
  auto add = [&](std::vector<int32_t> tokens, std::vector<int32_t> masks) {
    EXPECT_TRUE(writer->addRow(tokens, masks).isOk());
  };
  add({1, 2, 3}, {1, 0, 1});
  add({4, 5}, {0, 1});
  EXPECT_TRUE(writer->endPack().isOk());
  add({6, 7, 8, 9}, {0, 0, 1, 1});
  EXPECT_TRUE(writer->endPack().isOk());
  EXPECT_TRUE(writer
                  ->finish(manifest.empty() ? R"({"packs_format": 1, "vocab_size": 100, "length": 6,
                     "pad_token": 99, "packing": "first_fit", "rows": 3, "packs": 2, "tokens": 9})"
                                            : manifest)
                  .isOk());
  return prefix;
}

std::unique_ptr<DataSource> sourceOf(const std::string &prefix, int64_t length) {
  auto files = PackFiles::open(prefix);
  EXPECT_TRUE(files.isOk()) << files.status().message();
  auto source = openPacks(std::make_shared<const PackFiles>(std::move(*files)), 0, 2, length, 100);
  EXPECT_TRUE(source.isOk()) << source.status().message();
  return std::move(*source);
}

TEST(PackedSource, MakesSamplesOfRows) {
  TempFolder folder;
  auto source = sourceOf(writePacks(folder), 6);
  SampleBuffer buffer(6);
  Sample sample = buffer.view();
  ASSERT_OK(source->sample(0, sample)); // also warms up
  test::startCountingAllocations();
  Status again = source->sample(0, sample);
  EXPECT_EQ(test::stopCountingAllocations(), 0u);
  ASSERT_OK(again);
  using Ints = std::vector<int32_t>;
  EXPECT_EQ(buffer.tokens, (Ints{1, 2, 4, 99, 99, 99}));
  EXPECT_EQ(buffer.labels, (Ints{2, 3, 5, 99, 99, 99}));
  EXPECT_EQ(buffer.lossMask, (std::vector<float>{0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(buffer.positionIds, (Ints{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(sample.numDocuments, 3);
  EXPECT_EQ(buffer.documentStarts, (Ints{0, 2, 3, 6, 6, 6, 6}));
  ASSERT_OK(source->sample(1, sample));
  EXPECT_EQ(buffer.tokens, (Ints{6, 7, 8, 99, 99, 99}));
  EXPECT_EQ(buffer.lossMask, (std::vector<float>{0, 1, 1, 0, 0, 0}));
  EXPECT_FALSE(source->sample(2, sample).isOk());
}

TEST(PackedSource, RefusesPacksOfAnotherLengthOrVocabulary) {
  TempFolder folder;
  // Each of the files identifies the packs.
  auto files = PackFiles::open(writePacks(folder) + ".json");
  ASSERT_OK(files);
  auto shared = std::make_shared<const PackFiles>(std::move(*files));
  struct Case {
    int64_t length, vocab;
    const char *text;
  };
  for (const Case &one : {Case{8, 100, "'model.seq_length' is 8"},
                          {5, 100, "--length=5 --overlong=drop"},
                          {6, 99, "'model.vocab_size' is 99"}}) {
    auto source = openPacks(shared, 0, 2, one.length, one.vocab);
    ASSERT_FALSE(source.isOk());
    EXPECT_NE(source.status().message().find(one.text), std::string::npos)
        << source.status().message();
  }
}

TEST(PackFiles, RefusesWhatDoesNotBelongTogether) {
  constexpr const char *kRest = R"("length": 6, "pad_token": 0, "rows": 3, "packs": 2, )";
  struct Case {
    std::string manifest;
    const char *text;
  };
  const Case cases[] = {
      {"[1]", "no JSON object"},
      {R"({"vocab_size": 100})", "'dataset.kind = indexed'"},
      {fmt::format(R"({{"packs_format": 1, "vocab_size": 0, {}"tokens": 9}})", kRest),
       "no 'vocab_size' from 1"},
      {fmt::format(R"({{"packs_format": 1, "vocab_size": 9, {}"tokens": 9}})", kRest),
       "no text 'packing'"},
      {fmt::format(R"({{"packs_format": 1, "packing": "x", "vocab_size": 9, {}"tokens": 8}})",
                   kRest),
       "the manifest says 2, 3 and 8"},
      {R"({"packs_format": 1, "packing": "x", "vocab_size": 9, "length": 2, "pad_token": 0,
           "rows": 3, "packs": 2, "tokens": 9})",
       "a pack has 3 places; the manifest says 2"},
      {R"({"packs_format": 1, "packing": "x", "vocab_size": 9, "length": 6, "pad_token": 0,
           "rows": 3, "packs": 2, "tokens": 9, "tokenizer": {"path": "t\nshardc: error: x"}})",
       "the tokenizer's path has control characters"},
  };
  for (const Case &one : cases) {
    TempFolder folder;
    auto files = PackFiles::open(writePacks(folder, one.manifest));
    ASSERT_FALSE(files.isOk()) << one.text;
    EXPECT_NE(files.status().message().find(one.text), std::string::npos)
        << files.status().message();
  }
  TempFolder folder;
  auto none = PackFiles::open(folder.path() + "/chat.jsonl");
  ASSERT_FALSE(none.isOk());
  EXPECT_EQ(none.status().report().id, "data-not-found");
  EXPECT_NE(none.status().message().find("'shardc data sft ROWS.jsonl"), std::string::npos);
}

TEST(PackFiles, AreDataOfARun) {
  TempFolder folder;
  DataConfig config;
  config.sequenceLength = 6;
  config.vocabSize = 100;
  config.pathKind = PathKind::Packed;
  config.split = "1,1,0";
  config.samples = {1000, 1000, 0}; // passes follow from the order
  config.blend = Blend{{writePacks(folder)}, {}};
  auto sets = openDataSets(config);
  ASSERT_OK(sets);
  EXPECT_EQ(sets->source(Split::Train)->numSamples(), 1);
  EXPECT_EQ(sets->source(Split::Valid)->numSamples(), 1);
  config.split = "1,0,0";
  config.blend = Blend{{config.blend->paths[0], config.blend->paths[0]}, {}};
  sets = openDataSets(config);
  ASSERT_OK(sets);
  EXPECT_EQ(sets->source(Split::Train)->numSamples(), 4);
  config.blend->weights = {1, 2};
  EXPECT_EQ(openDataSets(config).status().report().id, "data-refused");
}

} // namespace
} // namespace shardc::data
