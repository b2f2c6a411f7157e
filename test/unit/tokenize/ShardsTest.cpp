#include "runtime/tokenize/Shards.h"

#include <filesystem>

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;
using data::TokenType;

Documents documentsOf(std::vector<int32_t> tokens, std::vector<uint32_t> lengths,
                      std::vector<uint32_t> sequences) {
  Documents documents{std::move(tokens), std::move(lengths), std::move(sequences), {}};
  documents.counts.tokens = static_cast<int64_t>(documents.tokens.size());
  documents.counts.sequences = static_cast<int64_t>(documents.lengths.size());
  documents.counts.documents = static_cast<int64_t>(documents.sequences.size());
  return documents;
}

/// Adds two shards with three documents: one is empty, one has two sequences.
void fill(ShardFolder &shards) {
  ASSERT_OK(shards.add(documentsOf({1, 2, 65499}, {1, 2}, {2}), std::nullopt));
  ASSERT_OK(shards.close({0, 5}));
  ASSERT_OK(shards.add(documentsOf({4}, {1}, {0, 1}), FinishedInput{0, 9, "abc"}));
  ASSERT_OK(shards.close({1, 0}));
}

TEST(Shards, AreContinuedAndCopied) {
  for (TokenType type : {TokenType::UInt16, TokenType::Int32}) {
    TempFolder folder;
    std::string parts = folder / "x.parts";
    {
      auto shards = ShardFolder::open(parts, "{}", type, 2);
      ASSERT_OK(shards);
      fill(*shards);
      ASSERT_OK(shards->add(documentsOf({5}, {1}, {1}), std::nullopt)); // is not closed
    }
    folder.write("x.parts/000002.tokens", "left over");
    folder.write("x.parts/000002.json.tmp.1.2", "left over");
    auto shards = ShardFolder::open(parts, "{}", type, 2);
    ASSERT_OK(shards);
    EXPECT_EQ(shards->next(), (Position{1, 0}));
    EXPECT_FALSE(fs::exists(folder / "x.parts/000002.tokens"));
    EXPECT_FALSE(fs::exists(folder / "x.parts/000002.json.tmp.1.2"));
    ASSERT_EQ(shards->records().size(), 2u);
    EXPECT_EQ(shards->records()[1].finished, (std::vector<FinishedInput>{{0, 9, "abc"}}));
    auto builder = data::IndexedBuilder::create(folder / "copied", type);
    auto wanted = data::IndexedBuilder::create(folder / "wanted", type);
    ASSERT_OK(builder);
    ASSERT_OK(shards->copyTo(*builder));
    ASSERT_OK(builder->finalize());
    ASSERT_OK(wanted->addTokens(std::vector<int32_t>{1}));
    ASSERT_OK(wanted->endSequence());
    ASSERT_OK(wanted->addTokens(std::vector<int32_t>{2, 65499}));
    ASSERT_OK(wanted->endSequence());
    ASSERT_OK(wanted->endDocument());
    ASSERT_OK(wanted->endDocument());
    ASSERT_OK(wanted->addTokens(std::vector<int32_t>{4}));
    ASSERT_OK(wanted->endSequence());
    ASSERT_OK(wanted->endDocument());
    ASSERT_OK(wanted->finalize());
    for (const char *suffix : {".bin", ".idx"})
      EXPECT_EQ(contentsOf((folder / "copied") + suffix), contentsOf((folder / "wanted") + suffix));
    ASSERT_OK(shards->remove());
    EXPECT_FALSE(fs::exists(parts));
  }
}

TEST(Shards, AreNotWrittenThroughALink) {
  TempFolder folder;
  folder.write("mine/lock", "mine");
  fs::create_directory_symlink("mine", folder / "x.parts");
  auto shards = ShardFolder::open(folder / "x.parts", "{}", TokenType::UInt16, 1);
  EXPECT_EQ(shards.status().code(), StatusCode::InvalidInput);
  EXPECT_TRUE(fs::exists(folder / "mine/lock"));
  EXPECT_FALSE(fs::exists(folder / "mine/job.json"));
}

TEST(Shards, OfAnotherJobAreRefused) {
  TempFolder folder;
  std::string parts = folder / "x.parts";
  auto open = [&](const char *job) { return ShardFolder::open(parts, job, TokenType::Int32, 2); };
  { ASSERT_OK(open(R"({"key": "a"})")); } // no shard is complete, so nothing remains
  EXPECT_FALSE(fs::exists(parts));
  {
    auto shards = open(R"({"key": "a"})");
    ASSERT_OK(shards);
    fill(*shards);
    EXPECT_FAILS(open(R"({"key": "a"})").status(), Unavailable, "another process works in");
  }
  EXPECT_FAILS(open(R"({"key": "b"})").status(), InvalidInput,
               "'key' was \"a\", and is \"b\"; delete that folder to begin anew");
  folder.write("x.parts/job.json", "{");
  EXPECT_FAILS(open(R"({"key": "a"})").status(), InvalidInput, "its record is damaged");
  EXPECT_TRUE(fs::exists(folder / "x.parts/000001.json"));
}

TEST(Shards, ThatAreDamagedAreRefused) {
  TempFolder folder;
  std::string parts = folder / "x.parts";
  auto open = [&] { return ShardFolder::open(parts, "{}", TokenType::Int32, 2); };
  {
    auto shards = open();
    ASSERT_OK(shards);
    fill(*shards);
  }
  std::string tokens = contentsOf(parts + "/000000.tokens"),
              record = contentsOf(parts + "/000000.json");
  auto refused = [&](std::string_view text) {
    Result<ShardFolder> shards = open();
    Status status = shards.status();
    if (shards.isOk()) {
      auto builder = data::IndexedBuilder::create(folder / "copied", TokenType::Int32);
      status = shards->copyTo(*builder);
    }
    EXPECT_FAILS(status, InvalidInput, text);
  };
  folder.write("x.parts/000000.tokens", tokens + "x");
  refused("000000.tokens' does not fit its record; delete the folder");
  for (size_t at = 0; at < tokens.size(); ++at) {
    std::string damaged = tokens;
    damaged[at] ^= 4;
    folder.write("x.parts/000000.tokens", damaged);
    refused("000000.tokens' is damaged; delete the folder");
  }
  folder.write("x.parts/000000.tokens", tokens);
  for (const char *text : {"", "[]", "{\"tokens\": 3}", "{\"tokens\": -1}"}) {
    folder.write("x.parts/000000.json", text);
    refused("does not fit its record");
  }
  folder.write("x.parts/000000.json", record);
  ASSERT_OK(open());
}

} // namespace
} // namespace shardc::tokenize
