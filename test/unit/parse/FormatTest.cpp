#include "compiler/parse/Format.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

std::optional<std::string> tryFormat(std::string text) {
  SourceManager sources;
  DiagEngine engine(sources);
  return formatRecipe(sources.addBuffer("a.recipe", std::move(text)), engine);
}

/// The formatted text; formatting it again must not change it.
std::string format(std::string text) {
  std::optional<std::string> once = tryFormat(std::move(text));
  EXPECT_TRUE(once.has_value());
  EXPECT_EQ(tryFormat(*once), once) << "formatting is not idempotent";
  return *once;
}

TEST(Format, SettlesBlanksAndIndentation) {
  EXPECT_EQ(format("recipe  r   extends \"a\" ,\"b\"{\na=1   b=- 2\n      c =[1,2 ,3]\n"
                   "optimizer   adam{x=(a+b)*-c}\nddp . y= none}"),
            "recipe r extends \"a\", \"b\" {\n"
            "  a = 1  b = -2\n"
            "  c = [1, 2, 3]\n"
            "  optimizer adam { x = (a + b) * -c }\n"
            "  ddp.y = none\n"
            "}\n");
}

TEST(Format, BreaksSectionsThatWereBroken) {
  EXPECT_EQ(format("recipe r { model llama { a = 1  b = 2\n                c = 3 }\n}"),
            "recipe r {\n  model llama {\n    a = 1  b = 2\n    c = 3\n  }\n}\n");
}

TEST(Format, EmptyBodies) {
  EXPECT_EQ(format("recipe r { }"), "recipe r {}\n");
  EXPECT_EQ(format("recipe r { s {\n\n} }"), "recipe r {\n  s {}\n}\n");
}

TEST(Format, KeepsEveryComment) {
  EXPECT_EQ(
      format("// one\n\n\n// two\nrecipe r { // three\n// four\n  a = 1 // five  \n\n\n  // six\n"
             "  s { b = 1 // seven\n }\n  // eight\n} // nine\n// ten"),
      "// one\n\n// two\nrecipe r {  // three\n  // four\n  a = 1  // five\n\n  // six\n"
      "  s {\n    b = 1  // seven\n  }\n  // eight\n}  // nine\n// ten\n");
}

TEST(Format, PutsCommentsInTheMiddleBeforeTheSetting) {
  EXPECT_EQ(format("recipe r {\n  a = // why\n    3 // how\n}"),
            "recipe r {\n  // why\n  a = 3  // how\n}\n");
  EXPECT_EQ(format("recipe // odd\n r { ddp // also\n { a = 1 } }"),
            "// odd\nrecipe r {\n  // also\n  ddp { a = 1 }\n}\n");
}

TEST(Format, KeepsCommentsInLists) {
  EXPECT_EQ(format("recipe r { a = [ // head\n 1, // one\n 2 // two\n, 3\n // end\n] }"),
            "recipe r {\n  a = [\n    // head\n    1,  // one\n    2,  // two\n    3\n    // end\n "
            " ]\n}\n");
}

TEST(Format, ACommentAtACommaDoesNotBreakTheElement) {
  EXPECT_EQ(format("recipe r { a = [(2,) // c\n, 3] }"),
            "recipe r {\n  a = [\n    (2,),  // c\n    3\n  ]\n}\n");
}

TEST(Format, BreaksWhatIsTooWide) {
  std::string wide = "recipe r { s {";
  for (int i = 0; i < 20; ++i)
    wide += " option_" + std::to_string(i) + " = " + std::to_string(i);
  std::string text = format(wide + " } }");
  size_t widest = 0;
  for (llvm::StringRef rest = text; !rest.empty(); rest = rest.split('\n').second)
    widest = std::max(widest, rest.split('\n').first.size());
  EXPECT_LE(widest, kFormatColumnsMax);
  EXPECT_NE(text.find("  s {\n    option_0 = 0  option_1 = 1"), std::string::npos);
}

TEST(Format, FillsWideLists) {
  std::string wide = "recipe r { a = [";
  for (int i = 0; i < 60; ++i)
    wide += std::to_string(i) + ",";
  std::string text = format(wide + "60] }");
  EXPECT_NE(text.find("  a = [\n    0, 1, 2"), std::string::npos) << text;
  EXPECT_NE(text.find("60\n  ]\n"), std::string::npos) << text;
}

TEST(Format, LeavesWrongRecipesAlone) {
  EXPECT_EQ(tryFormat("recipe r { a 1 }"), std::nullopt);
  EXPECT_EQ(tryFormat(""), std::nullopt);
  EXPECT_EQ(tryFormat("recipe r { a = \xFF }"), std::nullopt);
}

} // namespace
} // namespace shardc
