#include "compiler/parse/Parse.h"

#include <gtest/gtest.h>

#include "compiler/ast/Dump.h"
#include "test/unit/diag/Recorder.h"

namespace shardc {
namespace {

/// A text with its tree and messages.
struct Parsed {
  explicit Parsed(std::string text, bool isSetting = false) {
    engine.addConsumer(recorder);
    engine.setErrorLimit(0);
    if (isSetting)
      ast = parseSetting(sources.addSetting(text), engine);
    else
      ast = parseRecipe(sources.addBuffer("a.recipe", std::move(text)), engine);
    engine.finish();
    dump = ast::dump(ast->recipe(), sources, /*withPlaces=*/false);
  }
  std::string errors() const {
    std::string all;
    for (const std::string &line : recorder.lines)
      all += line + "\n";
    return all;
  }

  SourceManager sources;
  DiagEngine engine{sources};
  Recorder recorder{sources};
  std::unique_ptr<ast::Ast> ast;
  std::string dump;
};

TEST(Parse, ReadsTheWholeLanguage) {
  Parsed p(R"(// head
recipe r extends "a.recipe", "b.recipe" {
  let n = 2 * (3 + 4) - -1 / 2
  model llama { layers = 14_336  lr = 3e-4 // why
                rope = none }
  ddp.overlap = true  name = "a\nb"
  betas = (0.9, 0.95)  mods = [core_attn, "x", (1,), [],]
  mem = 80GiB  wait = 30min
  optimizer { inner { x = n } }
})");
  EXPECT_EQ(p.errors(), "");
  EXPECT_EQ(p.dump, R"(recipe r
  string extends "a.recipe"
  string extends "b.recipe"
  let n
    binary -
      binary *
        int 2
        binary +
          int 3
          int 4
      binary /
        unary -
          int 1
        int 2
  section model llama
    set layers
      int 14336
    set lr
      float 0.0003
    set rope
      none
  set ddp.overlap
    bool true
  set name
    string "a\nb"
  set betas
    list tuple
      float 0.9
      float 0.95
  set mods
    list
      name core_attn
      string "x"
      list tuple
        int 1
      list
  set mem
    size 85899345920 bytes
  set wait
    duration 1800000 ms
  section optimizer
    section inner
      set x
        name n
)");
}

TEST(Parse, KeywordsOfTheHeadMayNameOptions) {
  EXPECT_EQ(Parsed("recipe recipe { recipe = extends  extends { recipe = 1 } }").errors(), "");
}

TEST(Parse, PlacesAreBytesAndColumns) {
  Parsed p("recipe r {\n  a = \"é\"  b = 1\n}\n");
  EXPECT_EQ(p.errors(), "");
  const auto *b = ast::dynCast<ast::Assignment>(p.ast->recipe().items[1]);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(p.sources.lineColumn(b->range.begin).column, 12u);
  EXPECT_EQ(p.sources.text(b->range), "b = 1");
  EXPECT_EQ(p.sources.text(p.ast->recipe().range), p.sources.text(BufferId{0}).rtrim());
}

TEST(Parse, SectionsKnowTheirParts) {
  Parsed p("recipe r { optimizer adam { lr = 1 } }");
  const auto *section = ast::dynCast<ast::Section>(p.ast->recipe().items[0]);
  ASSERT_NE(section, nullptr);
  EXPECT_EQ(p.sources.text(section->head), "optimizer adam");
  EXPECT_EQ(p.sources.text(section->range), "optimizer adam { lr = 1 }");
  EXPECT_EQ(p.sources.lineColumn(section->openBrace).column, 27u);
  EXPECT_EQ(p.sources.lineColumn(section->closeBrace).column, 36u);
}

TEST(Parse, ParenthesesBelongToTheValue) {
  Parsed p("recipe r { a = (1 + 2) * 3 }");
  const auto *a = ast::dynCast<ast::Assignment>(p.ast->recipe().items[0]);
  const auto *product = ast::dynCast<ast::BinaryValue>(a->value);
  ASSERT_NE(product, nullptr);
  EXPECT_EQ(p.sources.text(product->left->range), "(1 + 2)");
  EXPECT_EQ(p.sources.text(product->opRange), "*");
}

TEST(Parse, TakesWindowsLineEndsAndByteOrderMarks) {
  Parsed p("\xEF\xBB\xBFrecipe r {\r\n  a = 1 // c\r\n  b 2\r\n}\r\n");
  EXPECT_EQ(p.errors(), "3:5: error: expected '=' between 'b' and '2' [missing-assign]\n");
}

TEST(Parse, AValueMayStandOnTheNextLine) {
  EXPECT_EQ(Parsed("recipe r {\n a =\n   full\n b = [\n 1,\n 2\n ]\n}").errors(), "");
}

TEST(ParseSetting, GivesOneAssignment) {
  Parsed p("model.num_layers=2*16", /*isSetting=*/true);
  EXPECT_EQ(p.errors(), "");
  EXPECT_EQ(p.dump,
            "recipe --set\n  set model.num_layers\n    binary *\n      int 2\n      int 16\n");
  EXPECT_TRUE(p.ast->recipe().isSetting);
}

TEST(ParseSetting, IsNamedInErrors) {
  SourceManager sources;
  DiagEngine engine(sources);
  parseSetting(sources.addSetting("a.b="), engine);
  ASSERT_EQ(engine.pending().size(), 1u);
  EXPECT_EQ(sources.lineColumn(engine.pending()[0].range.begin).file, "<--set a.b=>");
}

TEST(ParseSetting, RefusesWhatIsNoSetting) {
  EXPECT_EQ(Parsed("", true).errors(), "1:1: error: expected a name before '' [expected-name]\n");
  EXPECT_EQ(Parsed("a", true).errors(), "1:2: error: expected '=' after 'a' [expected-assign]\n");
  EXPECT_EQ(Parsed("a=", true).errors(),
            "1:3: error: expected a value after '=' [expected-value]\n");
  EXPECT_EQ(Parsed("a=1 b=2", true).errors(),
            "1:5: error: expected the end of the text, found 'b' [text-after-end]\n");
  EXPECT_EQ(Parsed("a { b = 1 }", true).errors(),
            "1:3: error: expected '=' before '{' [expected-assign]\n");
}

TEST(ParseLimits, Nesting) {
  auto nested = [](unsigned depth) {
    return "recipe r { a = " + std::string(depth - 1, '(') + "1" + std::string(depth - 1, ')') +
           " }";
  };
  EXPECT_EQ(Parsed(nested(kNestingMax)).errors(), "");
  EXPECT_NE(Parsed(nested(kNestingMax + 1)).errors().find("[nested-too-deep]"), std::string::npos);
  EXPECT_NE(Parsed(std::string(100'000, '{')).errors().find("[nested-too-deep]"),
            std::string::npos);
}

TEST(ParseLimits, Expressions) {
  auto chain = [](unsigned operands, const char *op) {
    std::string text = "recipe r { a = 1";
    for (unsigned i = 1; i < operands; ++i)
      text += op + std::string("1");
    return text + " }";
  };
  EXPECT_EQ(Parsed(chain(kNestingMax, "+")).errors(), "");
  EXPECT_NE(Parsed(chain(10'000, "*")).errors().find("[expression-too-deep]"), std::string::npos);
  std::string signs = "recipe r { a = " + std::string(100'000, '-') + "1 }";
  Parsed manySigns(signs);
  EXPECT_EQ(manySigns.recorder.lines.size(), 1u) << manySigns.errors().substr(0, 300);
}

TEST(ParseLimits, ListsAndBodies) {
  std::string list = "recipe r { a = [";
  std::string body = "recipe r {";
  for (unsigned i = 0; i <= kListElementsMax; ++i)
    list += "1,";
  for (unsigned i = 0; i <= kBodyItemsMax; ++i)
    body += " a = 1";
  EXPECT_NE(Parsed(list + "] }").errors().find("[list-too-long]"), std::string::npos);
  EXPECT_NE(Parsed(body + " }").errors().find("[body-too-long]"), std::string::npos);
}

TEST(ParseLimits, Words) {
  std::string text = "recipe r {";
  for (unsigned i = 0; i < 1'000'001; ++i)
    text += " a";
  EXPECT_NE(Parsed(text).errors().find("[too-many-words]"), std::string::npos);
}

TEST(ParseLimits, Bytes) {
  Parsed p("recipe r {}" + std::string(kRecipeBytesMax, ' '));
  EXPECT_NE(p.errors().find("[file-too-large]"), std::string::npos);
}

TEST(Parse, ControlCharactersInStringsAreEscapes) {
  EXPECT_EQ(Parsed("recipe r { a = \"x\x01\" }").errors(),
            "1:18: error: control character 1 in a string; write it as an escape "
            "[control-character]\n");
}

TEST(ParseLimits, OnlyUtf8) {
  EXPECT_EQ(Parsed("recipe r { // \xFF\n}").errors(),
            "1:15: error: byte 14 is not UTF-8 [not-utf8]\n");
}

} // namespace
} // namespace shardc
