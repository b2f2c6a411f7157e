#include "compiler/basic/Utf8.h"
#include "compiler/basic/ShellWord.h"

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
  EXPECT_EQ(printable("a\u202Eb\u2066\u200F\u061C"), "a?b???"); // change the direction of text
  EXPECT_EQ(escapeControls("\u202E\u05D0"), "\\xe2\\x80\\xae\u05D0");
  EXPECT_EQ(recipeQuoted("\u202E\u009B\u05D0"), "\"\\u{202e}\\u{9b}\u05D0\"");
}

} // namespace
} // namespace shardc
