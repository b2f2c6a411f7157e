#include "compiler/parse/Literals.h"

#include <limits>

#include <gtest/gtest.h>

namespace shardc::parse {
namespace {

int64_t integer(llvm::StringRef text, NumberKind kind) {
  NumberLiteral literal = decodeNumber(text);
  EXPECT_EQ(literal.fault, NumberFault::None) << text.str();
  EXPECT_EQ(literal.kind, kind) << text.str();
  return literal.integer;
}

double real(llvm::StringRef text) {
  NumberLiteral literal = decodeNumber(text);
  EXPECT_EQ(literal.fault, NumberFault::None) << text.str();
  EXPECT_EQ(literal.kind, NumberKind::Float) << text.str();
  return literal.real;
}

TEST(Numbers, Integers) {
  EXPECT_EQ(integer("0", NumberKind::Int), 0);
  EXPECT_EQ(integer("14_336", NumberKind::Int), 14336);
  EXPECT_EQ(integer("9223372036854775807", NumberKind::Int), std::numeric_limits<int64_t>::max());
}

TEST(Numbers, Floats) {
  EXPECT_EQ(real("3e-4"), 3e-4);
  EXPECT_EQ(real("0.95"), 0.95);
  EXPECT_EQ(real("1_000.5E+3"), 1000500.0);
}

TEST(Numbers, Sizes) {
  EXPECT_EQ(integer("80GiB", NumberKind::Bytes), int64_t{80} << 30);
  EXPECT_EQ(integer("1.5KiB", NumberKind::Bytes), 1536);
  EXPECT_EQ(integer("2TB", NumberKind::Bytes), 2'000'000'000'000);
  EXPECT_EQ(integer("7B", NumberKind::Bytes), 7);
  EXPECT_EQ(integer("80 GiB", NumberKind::Bytes), int64_t{80} << 30);
}

TEST(Numbers, Durations) {
  EXPECT_EQ(integer("30min", NumberKind::Milliseconds), 30 * 60 * 1000);
  EXPECT_EQ(integer("1.5s", NumberKind::Milliseconds), 1500);
  EXPECT_EQ(integer("2d", NumberKind::Milliseconds), 172'800'000);
  EXPECT_EQ(integer("5ms", NumberKind::Milliseconds), 5);
  EXPECT_EQ(integer("1h", NumberKind::Milliseconds), 3'600'000);
}

TEST(Numbers, Faults) {
  auto fault = [](llvm::StringRef text) { return decodeNumber(text).fault; };
  EXPECT_EQ(fault("1__0"), NumberFault::Separator);
  EXPECT_EQ(fault("1_"), NumberFault::Separator);
  EXPECT_EQ(fault("1._5"), NumberFault::Separator);
  EXPECT_EQ(fault("1.2.3"), NumberFault::Malformed);
  EXPECT_EQ(fault("1e5GiB"), NumberFault::Malformed);
  EXPECT_EQ(fault("1e+-5"), NumberFault::Malformed);
  EXPECT_EQ(fault("0x10"), NumberFault::Malformed);
  EXPECT_EQ(fault("3x"), NumberFault::UnknownUnit);
  EXPECT_EQ(fault("9223372036854775808"), NumberFault::OutOfRange);
  EXPECT_EQ(fault("1e999"), NumberFault::OutOfRange);
  EXPECT_EQ(fault("9999999999TiB"), NumberFault::OutOfRange);
  EXPECT_EQ(fault("0.3B"), NumberFault::Uneven);
  EXPECT_EQ(fault("0.0001ms"), NumberFault::Uneven);
}

TEST(Numbers, SuggestsOnlyWhatIsClear) {
  EXPECT_EQ(decodeNumber("5.").replacement, "5.0");
  EXPECT_EQ(decodeNumber("80gib").replacement, "80GiB");
  EXPECT_EQ(decodeNumber("3x").replacement, "");
}

TEST(Strings, ResolvesEscapes) {
  std::optional<StringFault> fault;
  EXPECT_EQ(decodeString(R"("a\"b\\\n\t\r\u{1F600}é")", fault), "a\"b\\\n\t\r\xF0\x9F\x98\x80é");
  EXPECT_FALSE(fault);
  EXPECT_EQ(decodeString("\"\"", fault), "");
}

TEST(Strings, TellsTheFirstFault) {
  std::optional<StringFault> fault;
  decodeString(R"("ab\q\z")", fault);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, StringFault::Kind::UnknownEscape);
  EXPECT_EQ(fault->begin, 3u);
  EXPECT_EQ(fault->end, 5u);
  for (const char *text :
       {R"("\u")", R"("\u{}")", R"("\u{0}")", R"("\u{D800}")", R"("\u{110000}")"}) {
    decodeString(text, fault);
    ASSERT_TRUE(fault) << text;
    EXPECT_EQ(fault->kind, StringFault::Kind::BadCodePoint) << text;
  }
  decodeString("\"a\x01\"", fault);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, StringFault::Kind::Control);
}

TEST(Strings, EncodingIsTheInverse) {
  std::string value = "a\"b\\\n\t\r\x01é";
  std::optional<StringFault> fault;
  EXPECT_EQ(decodeString(encodeString(value), fault), value);
  EXPECT_FALSE(fault);
}

} // namespace
} // namespace shardc::parse
