#include "compiler/basic/Utf8.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

TEST(Utf8, FindsTheFirstIllFormedByte) {
  EXPECT_EQ(findInvalidUtf8("plain é \xF0\x9F\x98\x80"), std::nullopt);
  EXPECT_EQ(findInvalidUtf8("ab\xFF"), 2u);
  EXPECT_EQ(findInvalidUtf8("a\xC3"), 1u);            // cut off
  EXPECT_EQ(findInvalidUtf8("\xC0\x80"), 0u);         // overlong
  EXPECT_EQ(findInvalidUtf8("\xE0\x80\x80"), 0u);     // overlong
  EXPECT_EQ(findInvalidUtf8("\xED\xA0\x80"), 0u);     // surrogate
  EXPECT_EQ(findInvalidUtf8("\xF4\x90\x80\x80"), 0u); // beyond U+10FFFF
  EXPECT_EQ(findInvalidUtf8("\x80"), 0u);
}

TEST(Utf8, Counts) {
  EXPECT_EQ(countCodePoints("aé\xF0\x9F\x98\x80"), 3u);
  EXPECT_EQ(countUtf16Units("aé\xF0\x9F\x98\x80"), 4u);
  EXPECT_EQ(countCodePoints("\xFF\xFF"), 2u);
}

TEST(Utf8, MakesTextPrintable) {
  EXPECT_EQ(printable("a\x1B[0m\tb\xFF"), "a?[0m?b?");
  EXPECT_EQ(printable("a\tb", true), "a\tb");
  EXPECT_EQ(printable("\xC2\x9B"), "?"); // a control character of two bytes
  EXPECT_EQ(printable("é"), "é");
}

TEST(Utf8, AppendsCodePoints) {
  std::string out;
  EXPECT_TRUE(appendUtf8(out, 0x41) && appendUtf8(out, 0xE9) && appendUtf8(out, 0x20AC) &&
              appendUtf8(out, 0x1F600));
  EXPECT_EQ(out, "Aé€\xF0\x9F\x98\x80");
  EXPECT_FALSE(appendUtf8(out, 0xD800));
  EXPECT_FALSE(appendUtf8(out, 0x110000));
}

} // namespace
} // namespace shardc
