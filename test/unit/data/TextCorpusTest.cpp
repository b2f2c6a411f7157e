#include "runtime/data/TextCorpus.h"

#include "runtime/data/ByteTokenizer.h"
#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

Result<TextCorpus> open(const std::string &path, int64_t documentBytes) {
  return TextCorpus::open("text", {&path, 1}, {.documentBytes = documentBytes});
}

/// The documents as strings, each of which must end with the end token.
std::vector<std::string> documents(const TextCorpus &corpus) {
  std::vector<std::string> result;
  for (size_t i = 0; i < corpus.sequenceLengths().size(); ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(corpus.sequenceLengths()[i]));
    Status status = corpus.read(static_cast<int64_t>(i), 0, tokens);
    EXPECT_TRUE(status.isOk()) << status.message();
    EXPECT_EQ(tokens.back(), kByteEndToken);
    result.emplace_back(tokens.begin(), tokens.end() - 1);
  }
  return result;
}

TEST(TextCorpus, FilesAreDocuments) {
  TempFolder folder;
  folder.write("t/1.txt", "one\n");
  folder.write("t/2.txt", "");
  folder.write("t/3.txt", std::string("\0\xff", 2));
  Result<TextCorpus> corpus = open(folder / "t", 8192);
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->numFiles(), 3);
  EXPECT_EQ(documents(*corpus), (std::vector<std::string>{"one\n", std::string("\0\xff", 2)}));
}

TEST(TextCorpus, RefusesJsonLines) {
  TempFolder folder;
  folder.write("t/1.txt", "one\n");
  std::string lines = folder.write("t/2.jsonl", "{\"text\": \"two\"}\n");
  EXPECT_EQ(open(folder / "t", 8192).status().message(),
            "'" + lines +
                "' has JSON lines, whose braces and keys would be text; 'shardc data build " +
                lines + " OUT --tokenizer=bytes' makes indexed data of their texts");
}

TEST(TextCorpus, BytesAboveAsciiStayPositive) {
  TempFolder folder;
  Result<TextCorpus> corpus = open(folder.write("x", "\xff\x80"), 0);
  ASSERT_OK(corpus);
  std::vector<int32_t> tokens(3);
  ASSERT_OK(corpus->read(0, 0, tokens));
  EXPECT_EQ(tokens, (std::vector<int32_t>{255, 128, kByteEndToken}));
  ASSERT_OK(corpus->read(0, 2, std::span(tokens).first(1)));
  EXPECT_EQ(tokens[0], kByteEndToken);
}

TEST(TextCorpus, CutsAfterTheLastLineOfTheSecondHalf) {
  TempFolder folder;
  Result<TextCorpus> corpus = open(folder.write("x", "aaaa\nbbb\ncc\nddddddddddddd\ne"), 12);
  ASSERT_OK(corpus);
  EXPECT_EQ(documents(*corpus),
            (std::vector<std::string>{"aaaa\nbbb\ncc\n", "dddddddddddd", "d\ne"}));
}

TEST(TextCorpus, CutsBetweenCharacters) {
  TempFolder folder;
  Result<TextCorpus> corpus = open(folder.write("x", "aaaaa\u00e4\u20acbbb"), 6);
  ASSERT_OK(corpus);
  EXPECT_EQ(documents(*corpus), (std::vector<std::string>{"aaaaa", "\u00e4\u20acb", "bb"}));
}

TEST(TextCorpus, CutsKeepEveryByte) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += static_cast<char>((i * i * 7 + i / 3) % 256);
  std::string path = folder.write("x", text);
  for (int64_t documentBytes : {1, 2, 3, 5, 8, 100, 2999, 3000, 0}) {
    Result<TextCorpus> corpus = open(path, documentBytes);
    ASSERT_OK(corpus);
    std::string joined;
    for (const std::string &document : documents(*corpus)) {
      EXPECT_FALSE(document.empty());
      EXPECT_TRUE(documentBytes == 0 || static_cast<int64_t>(document.size()) <= documentBytes);
      joined += document;
    }
    EXPECT_EQ(joined, text) << documentBytes;
  }
}

TEST(TextCorpus, RefusesTextThatCannotBeUsed) {
  TempFolder folder;
  EXPECT_FAILS(open(folder.write("x", ""), 0).status(), InvalidInput, "the text 'text' is empty");
  EXPECT_FAILS(open(folder / "none", 0).status(), NotFound, "none");
  EXPECT_FAILS(open(folder / "x", -1).status(), InvalidInput, "documents of -1 bytes");
}

TEST(TextCorpus, ChangedFilesAreAMessage) {
  TempFolder folder;
  Result<TextCorpus> corpus = open(folder.write("x", "hello world"), 0);
  ASSERT_OK(corpus);
  folder.write("x", "hello");
  std::vector<int32_t> tokens(3);
  EXPECT_FAILS(corpus->read(0, 0, tokens), InvalidInput,
               "has 5 bytes, but had 11 when it was opened");
}

} // namespace
} // namespace shardc::data
