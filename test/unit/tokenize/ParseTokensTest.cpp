#include "runtime/tokenize/HuggingFace.h"
#include "runtime/tokenize/RowProcess.h"

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

std::string words(std::initializer_list<uint32_t> values) {
  std::string bytes;
  for (uint32_t value : values)
    bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
  return bytes;
}

TEST(ParseTokens, ReadsLengthsAndTokens) {
  Encoding encoding;
  ASSERT_OK(parseTokens(words({3, 2, 0, 1, 7, 8, 9}), 3, 10, encoding));
  EXPECT_EQ(encoding.lengths, (std::vector<uint32_t>{2, 0, 1}));
  EXPECT_EQ(encoding.tokens, (std::vector<int32_t>{7, 8, 9}));
  ASSERT_OK(parseTokens(words({0}), 0, 10, encoding));
  EXPECT_TRUE(encoding.tokens.empty());
}

TEST(ParseTokens, RefusesWhatDoesNotFit) {
  Encoding encoding;
  EXPECT_FAILS(parseTokens("", 0, 10, encoding), Io, "without a count");
  EXPECT_FAILS(parseTokens(words({2, 0, 0}), 1, 10, encoding), Io, "another number of texts");
  EXPECT_FAILS(parseTokens(words({2, 0}), 2, 10, encoding), Io, "another number of texts");
  EXPECT_FAILS(parseTokens(words({1, 2, 5}), 1, 10, encoding), Io, "another number of tokens");
  EXPECT_FAILS(parseTokens(words({1, 0, 5}), 1, 10, encoding), Io, "another number of tokens");
  EXPECT_FAILS(parseTokens(words({2, 0xffffffff, 0xffffffff}), 2, 10, encoding), Io,
               "another number of tokens");
  EXPECT_FAILS(parseTokens(words({1, 1, 10}), 1, 10, encoding), Io,
               "token 10, which is not below 10");
  EXPECT_FAILS(parseTokens(words({1, 1, 0xffffffff}), 1, 10, encoding), Io, "token -1");
}

TEST(ParseRows, ReadsTokensAndMasks) {
  Rows rows;
  ASSERT_OK(parseRows(words({2, 1, 2}) + std::string("\1\10", 2) + words({7, 8, 9}) +
                          std::string("\0\1\0", 3),
                      10, rows));
  EXPECT_EQ(rows.lengths, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(rows.flags, (std::vector<uint8_t>{kCut, kWanted}));
  EXPECT_EQ(rows.tokens, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(rows.masks, (std::vector<uint8_t>{0, 1, 0}));
}

TEST(ParseRows, RefusesWhatDoesNotFit) {
  Rows rows;
  const std::string none(1, '\0');
  EXPECT_FAILS(parseRows("", 10, rows), Io, "without the lengths");
  EXPECT_FAILS(parseRows(words({0xffffffff, 1}), 10, rows), Io, "without the lengths");
  EXPECT_FAILS(parseRows(words({1, 1}), 10, rows), Io, "without the lengths");
  EXPECT_FAILS(parseRows(words({1, 2}) + none + words({5}) + none, 10, rows), Io,
               "another number of tokens");
  EXPECT_FAILS(parseRows(words({1, 1}) + none + words({10}) + none, 10, rows), InvalidInput,
               "the token 10, outside of the vocabulary of 10");
  EXPECT_FAILS(parseRows(words({1, 1}) + none + words({5}) + "\2", 10, rows), Io,
               "neither 0 nor 1");
}

TEST(ParseTokens, ReadsNotesOnRows) {
  std::vector<RowNote> notes;
  ASSERT_TRUE(parseNotes(R"([["ignored", "id", 3, 0], ["told", "x", 1, 2]])", notes));
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[1].kind + notes[1].text, "toldx");
  EXPECT_EQ(notes[0].count, 3);
  EXPECT_EQ(notes[1].first, 2U);
  for (const char *text : {"", "{}", "[1]", R"([["a", "b", 1]])", R"([["a", 2, 1, 1]])",
                           R"([["a", "b", -1, 1]])", R"([["a", "b", 1, "c"]])"})
    EXPECT_FALSE(parseNotes(text, notes)) << text;
}

} // namespace
} // namespace shardc::tokenize
