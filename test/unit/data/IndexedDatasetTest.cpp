#include "runtime/data/IndexedDataset.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "runtime/data/IndexedBuilder.h"
#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

/// A copy of the tiny dataset whose files a test may damage. It has 13 sequences in 10 documents.
struct TinyCopy {
  TempFolder folder;
  std::string prefix = folder / "tiny";
  std::string idx = contentsOf(fixture("tiny.idx"));
  std::string bin = contentsOf(fixture("tiny.bin"));

  Result<IndexedDataset> open() const {
    folder.write("tiny.idx", idx);
    folder.write("tiny.bin", bin);
    return IndexedDataset::open(prefix);
  }
  template <typename T> void put(size_t offset, T value) {
    std::memcpy(idx.data() + offset, &value, sizeof value);
  }
};

constexpr size_t kLengths = 34, kPointers = kLengths + 13 * 4, kDocuments = kPointers + 13 * 8;

TEST(IndexedDataset, APathMayBeOneOfItsFiles) {
  TinyCopy tiny;
  ASSERT_OK(tiny.open());
  for (const char *ending : {"", ".bin", ".idx"}) {
    EXPECT_TRUE(IndexedDataset::exists(tiny.prefix + ending)) << ending;
    Result<IndexedDataset> dataset = IndexedDataset::open(tiny.prefix + ending);
    ASSERT_OK(dataset);
    EXPECT_EQ(dataset->name(), tiny.prefix);
  }
  tiny.folder.write("tiny.bin.idx", tiny.idx); // a prefix of its own
  EXPECT_EQ(IndexedDataset::prefixOf(tiny.prefix + ".bin"), tiny.prefix + ".bin");
  EXPECT_EQ(IndexedDataset::prefixOf(".bin"), "");
}

TEST(IndexedDataset, ReadsWhatNumpyWrote) {
  Result<IndexedDataset> dataset = IndexedDataset::open(fixture("tiny"));
  ASSERT_OK(dataset);
  EXPECT_EQ(dataset->index().type(), TokenType::UInt16);
  EXPECT_EQ(asInts(dataset->sequenceLengths()), golden("gpt.epoch.lengths"));
  EXPECT_EQ(dataset->index().numDocuments(), 10);
  std::string bin = contentsOf(fixture("tiny.bin"));
  int64_t at = 0;
  for (int64_t sequence = 0; sequence < 13; ++sequence) {
    EXPECT_EQ(dataset->index().offsetOf(sequence), at * 2);
    std::vector<int32_t> tokens(
        static_cast<size_t>(dataset->sequenceLengths()[static_cast<size_t>(sequence)]));
    ASSERT_OK(dataset->read(sequence, 0, tokens));
    for (int32_t token : tokens) {
      uint16_t expected;
      std::memcpy(&expected, bin.data() + 2 * at++, 2);
      EXPECT_EQ(token, expected);
    }
  }
}

TEST(IndexedDataset, ReadsPartsOfASequence) {
  Result<IndexedDataset> dataset = IndexedDataset::open(fixture("wide"));
  ASSERT_OK(dataset);
  std::vector<int32_t> whole(60), part(7);
  ASSERT_OK(dataset->read(3, 0, whole));
  ASSERT_OK(dataset->read(3, 50, part));
  EXPECT_EQ(part, std::vector<int32_t>(whole.begin() + 50, whole.begin() + 57));
}

TEST(IndexedDataset, FindsSequencesBeyondTheFirstStride) {
  TempFolder folder;
  Result<IndexedBuilder> builder = IndexedBuilder::create(folder / "many", TokenType::Int32);
  ASSERT_OK(builder);
  for (int32_t i = 0; i < 1000; ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(i % 5), i);
    ASSERT_OK(builder->addTokens(tokens));
    ASSERT_OK(builder->endSequence());
    ASSERT_OK(builder->endDocument());
  }
  ASSERT_OK(builder->finalize());
  Result<IndexedDataset> dataset = IndexedDataset::open(folder / "many");
  ASSERT_OK(dataset);
  for (int32_t i : {4, 63, 64, 66, 129, 998, 999}) {
    std::vector<int32_t> tokens(static_cast<size_t>(i % 5), -1);
    ASSERT_OK(dataset->read(i, 0, tokens));
    EXPECT_EQ(tokens, std::vector<int32_t>(static_cast<size_t>(i % 5), i));
  }
}

TEST(IndexedDataset, TokensBeyondThirtyTwoBitsAreRefused) {
  Result<IndexedDataset> dataset = IndexedDataset::open(fixture("long"));
  ASSERT_OK(dataset);
  std::vector<int32_t> tokens(3);
  ASSERT_OK(dataset->read(0, 0, tokens));
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 2147483647}));
  tokens.resize(1);
  EXPECT_FAILS(dataset->read(1, 0, tokens), InvalidInput, "token 0 of sequence 1 does not fit 32");
}

TEST(IndexedDataset, MissingFilesAreNotFound) {
  TempFolder folder;
  EXPECT_FALSE(IndexedDataset::exists(folder / "none"));
  EXPECT_FAILS(IndexedDataset::open(folder / "none").status(), NotFound, "none.idx");
  folder.write("half.idx", "x");
  EXPECT_FALSE(IndexedDataset::exists(folder / "half"));
  EXPECT_FAILS(IndexedDataset::open(folder / "half").status(), NotFound, "half.bin");
}

TEST(IndexedDataset, EveryTruncationIsRefused) {
  TinyCopy tiny;
  std::string whole = tiny.idx;
  for (size_t size = 0; size < whole.size(); ++size) {
    tiny.idx = whole.substr(0, size);
    EXPECT_FAILS(tiny.open().status(), InvalidInput, "tiny.idx'");
  }
  tiny.idx = whole;
  std::string bin = tiny.bin;
  for (size_t size = 0; size < bin.size(); ++size) {
    tiny.bin = bin.substr(0, size);
    EXPECT_FAILS(tiny.open().status(), InvalidInput, "the .bin file is truncated");
    EXPECT_FAILS(tiny.open().status(), InvalidInput, "[data-damaged]");
  }
}

TEST(IndexedDataset, InconsistentFieldsAreNamed) {
  struct Case {
    const char *message;
    std::function<void(TinyCopy &)> corrupt;
  };
  const Case cases[] = {
      {"field 'magic'", [](TinyCopy &t) { t.idx[0] = 'T'; }},
      {"field 'version' is 2", [](TinyCopy &t) { t.idx[9] = 2; }},
      {"field 'dtype' is 0, supported are 1 to 8", [](TinyCopy &t) { t.idx[17] = 0; }},
      {"field 'dtype' is 9", [](TinyCopy &t) { t.idx[17] = 9; }},
      {"field 'dtype' is 7 (float32), but tokens are integers", [](TinyCopy &t) { t.idx[17] = 7; }},
      {"adds up to 180 bytes, the .bin file has 182", [](TinyCopy &t) { t.bin += "xx"; }},
      {"ends at byte", [](TinyCopy &t) { t.idx[17] = 4; }},
      {"field 'sequence count' is 18446744073709551615",
       [](TinyCopy &t) { t.put<uint64_t>(18, ~uint64_t{0}); }},
      {"truncated: 14 sequences", [](TinyCopy &t) { t.put<uint64_t>(18, 14); }},
      {"field 'document count' is 0", [](TinyCopy &t) { t.put<uint64_t>(26, 0); }},
      {"field 'document count' is 2305843009213693952",
       [](TinyCopy &t) { t.put<uint64_t>(26, uint64_t{1} << 61); }},
      {"multimodal", [](TinyCopy &t) { t.idx += std::string(13, '\0'); }},
      {"13 sequences and 11 document boundaries need 278 bytes, the file has 282",
       [](TinyCopy &t) { t.idx += "more"; }},
      {"field 'sequence lengths' holds -5 at sequence 2",
       [](TinyCopy &t) { t.put<int32_t>(kLengths + 8, -5); }},
      {"sequence 12 ends at byte", [](TinyCopy &t) { t.put<int32_t>(kLengths + 48, 1 << 30); }},
      {"field 'sequence pointers' holds 11 at sequence 1, the lengths before it add up to 10",
       [](TinyCopy &t) { t.put<int64_t>(kPointers + 8, 11); }},
      {"field 'sequence pointers' holds -9223372036854775808 at sequence 0",
       [](TinyCopy &t) { t.put<int64_t>(kPointers, INT64_MIN); }},
      {"field 'document indices' begins with 1",
       [](TinyCopy &t) { t.put<int64_t>(kDocuments, 1); }},
      {"field 'document indices' holds 1 at 2; from 2 to 13",
       [](TinyCopy &t) { t.put<int64_t>(kDocuments + 16, 1); }},
      {"field 'document indices' ends with 14, but there are 13 sequences",
       [](TinyCopy &t) { t.put<int64_t>(kDocuments + 80, 14); }},
      {"field 'document indices' ends with 12, but there are 13 sequences",
       [](TinyCopy &t) { t.put<int64_t>(kDocuments + 80, 12); }},
  };
  for (const Case &c : cases) {
    TinyCopy tiny;
    c.corrupt(tiny);
    Result<IndexedDataset> dataset = tiny.open();
    EXPECT_FAILS(dataset.status(), InvalidInput, c.message);
    EXPECT_FAILS(dataset.status(), InvalidInput, "tiny.idx'");
  }
}

/// A sparse index claims two billion sequences; opening it must read none of them.
TEST(IndexedDataset, SizesThatContradictAreFoundAtOnce) {
  TempFolder folder;
  constexpr uint64_t kSequences = 2147483647, kEnd = 34 + kSequences * 12 + 16;
  auto open = [&](uint64_t last, const std::string &bin) {
    std::string header(34, '\0');
    header.replace(0, 9, kIndexMagic);
    for (auto [at, value] : {std::pair(9, uint64_t{1}), {17, 8}, {18, kSequences}, {26, 2}})
      std::memcpy(header.data() + at, &value, at == 17 ? 1 : 8);
    folder.write("x.bin", bin);
    std::string path = folder.write("x.idx", header);
    std::filesystem::resize_file(path, kEnd - 8);
    std::ofstream(path, std::ios::binary | std::ios::app)
        .write(reinterpret_cast<const char *>(&last), 8);
    return IndexedDataset::open(folder / "x").status();
  };
  EXPECT_FAILS(open(0, ""), InvalidInput, "ends with 0, but there are 2147483647 sequences");
  EXPECT_FAILS(open(kSequences, ""), InvalidInput,
               "field 'sequence count' is 2147483647, and the .bin file is empty");
}

TEST(IndexedDataset, AFileThatShrinksIsAMessage) {
  TinyCopy tiny;
  Result<IndexedDataset> dataset = tiny.open();
  ASSERT_OK(dataset);
  std::filesystem::resize_file(tiny.prefix + ".bin", 100);
  std::vector<int32_t> tokens(5);
  ASSERT_OK(dataset->read(0, 0, tokens));
  EXPECT_FAILS(dataset->read(12, 0, tokens), InvalidInput,
               "tiny.bin' has 100 bytes, but had 180 when it was opened");
}

TEST(IndexedDataset, FoldersAndPipesAreRefused) {
  TempFolder folder;
  std::filesystem::create_directories(folder / "d.idx");
  EXPECT_FAILS(IndexedDataset::open(folder / "d").status(), InvalidInput,
               "is a folder, not a file");
}

TEST(IndexedBuilder, WritesByteForByteWhatUpstreamWrites) {
  Result<IndexedDataset> tiny = IndexedDataset::open(fixture("tiny"));
  ASSERT_OK(tiny);
  TempFolder folder;
  Result<IndexedBuilder> builder = IndexedBuilder::create(folder / "copy", TokenType::UInt16);
  ASSERT_OK(builder);
  int64_t sequence = 0;
  for (int64_t sequencesOfDocument : {2, 1, 1, 1, 0, 3, 1, 2, 1, 1}) {
    for (int64_t end = sequence + sequencesOfDocument; sequence < end; ++sequence) {
      std::vector<int32_t> tokens(
          static_cast<size_t>(tiny->sequenceLengths()[static_cast<size_t>(sequence)]));
      ASSERT_OK(tiny->read(sequence, 0, tokens));
      ASSERT_OK(builder->addTokens(tokens));
      ASSERT_OK(builder->endSequence());
    }
    ASSERT_OK(builder->endDocument());
  }
  ASSERT_OK(builder->finalize());
  EXPECT_EQ(contentsOf(folder / "copy.idx"), contentsOf(fixture("tiny.idx")));
  EXPECT_EQ(contentsOf(folder / "copy.bin"), contentsOf(fixture("tiny.bin")));
  EXPECT_EQ(builder->numTokens(), 90);
}

TEST(IndexedBuilder, TokensThatDoNotFitAreRefused) {
  TempFolder folder;
  Result<IndexedBuilder> builder = IndexedBuilder::create(folder / "x", TokenType::UInt16);
  ASSERT_OK(builder);
  EXPECT_FAILS(builder->addTokens(std::vector<int32_t>{1, 65536}), InvalidInput,
               "token 65536 does not fit uint16");
  EXPECT_FAILS(builder->addTokens(std::vector<int32_t>{-1}), InvalidInput, "token -1");
  EXPECT_FAILS(IndexedBuilder::create(folder / "y", TokenType::Float32).status(), InvalidInput,
               "not float32");
  EXPECT_FAILS(IndexedBuilder::create(folder / "no/y", TokenType::Int32).status(), NotFound,
               "no/y");
}

TEST(IndexedBuilder, LeavesNothingWithoutFinalize) {
  TempFolder folder;
  {
    Result<IndexedBuilder> builder = IndexedBuilder::create(folder / "x", TokenType::Int32);
    ASSERT_OK(builder);
    ASSERT_OK(builder->addTokens(std::vector<int32_t>{1, 2, 3}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(IndexedBuilder, ReplacesADatasetWhole) {
  TempFolder folder;
  for (int32_t token : {7, 8}) {
    Result<IndexedBuilder> builder = IndexedBuilder::create(folder / "x", TokenType::Int64);
    ASSERT_OK(builder);
    ASSERT_OK(builder->addTokens(std::vector<int32_t>(static_cast<size_t>(token), token)));
    ASSERT_OK(builder->endSequence());
    ASSERT_OK(builder->endDocument());
    ASSERT_OK(builder->finalize());
    Result<IndexedDataset> dataset = IndexedDataset::open(folder / "x");
    ASSERT_OK(dataset);
    EXPECT_EQ(dataset->sequenceLengths()[0], token);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            2);
}

TEST(TokenType, FollowsTheVocabulary) {
  EXPECT_EQ(tokenTypeFor(257), TokenType::UInt16);
  EXPECT_EQ(tokenTypeFor(65499), TokenType::UInt16);
  EXPECT_EQ(tokenTypeFor(65500), TokenType::Int32);
}

} // namespace
} // namespace shardc::data
