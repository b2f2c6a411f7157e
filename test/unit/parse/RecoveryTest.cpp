#include "compiler/parse/Parse.h"

#include <gtest/gtest.h>

#include "compiler/ast/Dump.h"

namespace shardc {
namespace {

/// The tree after errors, as text, and the number of errors.
struct Recovered {
  explicit Recovered(std::string text) {
    BufferId id = sources.addBuffer("a.recipe", std::move(text));
    std::unique_ptr<ast::Ast> ast = parseRecipe(id, engine);
    isStructureKnown = ast->recipe().isStructureKnown;
    dump = ast::dump(ast->recipe(), sources, /*withPlaces=*/false);
    numErrors = engine.numErrors();
    fixIts = engine.pending();
  }
  bool has(llvm::StringRef line) const { return llvm::StringRef(dump).contains(line); }

  SourceManager sources;
  DiagEngine engine{sources};
  std::string dump;
  unsigned numErrors = 0;
  bool isStructureKnown = true;
  std::vector<Diagnostic> fixIts;
};

/// After an error, the tree is the same as if its fix-it had been applied.
TEST(Recovery, GoesOnAsIfRepaired) {
  Recovered p("recipe r { lr 3e-4  use yes\n x: 1  ddp = { y = 1 }  mp = bf16 { z = 1 }\n m = 80 "
              "GiB t = True }");
  EXPECT_EQ(p.numErrors, 7u);
  EXPECT_EQ(p.dump, R"(recipe r
  set lr
    float 0.0003
  set use
    name yes
  set x
    int 1
  section ddp
    set y
      int 1
  section mp bf16
    set z
      int 1
  set m
    size 85899345920 bytes
  set t
    bool true
)");
}

TEST(Recovery, KeepsTheSettingsAround) {
  for (const char *fault : {"x =", "x = *", "x = 3 *", "x = [1, 2", "x = (1", "x. = 3", "5 = 3",
                            "\"x\" = 3", "x = 3 4", "] x = 1", "x", "let x", "x y z", "= 3",
                            "x = 1.2.3", "x = \"abc", "x = a.b", "@", "x = (1, 2]"}) {
    SCOPED_TRACE(fault);
    Recovered p("recipe r {\n  before = 1\n  " + std::string(fault) +
                "\n  after = 2\n  s { c = 3 }\n}\n");
    EXPECT_GE(p.numErrors, 1u);
    EXPECT_LE(p.numErrors, 2u);
    EXPECT_TRUE(p.has("set before\n    int 1"));
    EXPECT_TRUE(p.has("set after\n    int 2")) << p.dump;
    EXPECT_TRUE(p.has("  section s\n    set c\n      int 3")) << p.dump;
    EXPECT_TRUE(p.isStructureKnown);
  }
}

TEST(Recovery, AnUnreadableValueIsAnErrorValue) {
  EXPECT_TRUE(Recovered("recipe r { x = * }").has("set x\n    error"));
  EXPECT_TRUE(Recovered("recipe r { x = }").has("set x\n    error"));
  EXPECT_TRUE(Recovered("recipe r { let x = }").has("let x\n    error"));
}

TEST(Recovery, OneErrorForOneFault) {
  for (const char *text :
       {"recipe r { a = [1, 2 }", "recipe r { a = é }", "recipe r { a = \"x }",
        "recipe r { a = 3 @ 4 }", "recipe r extends { a = 1 }", "recipe { a = 1 }", "a = 1", "",
        "recipe r", "recipe r { ddp { a = 1 }", "recipe r { } }", "recipe r { } recipe s { }",
        "recipe r extends a.recipe { }"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(Recovered(text).numErrors, 1u);
  }
}

TEST(Recovery, TellsWhenSectionsAreAGuess) {
  EXPECT_FALSE(Recovered("recipe r {\n  ddp { a = 1\n  train { b = 2 }\n}\n").isStructureKnown);
  EXPECT_FALSE(Recovered("recipe r { a = 1 } }").isStructureKnown);
  EXPECT_FALSE(Recovered("model llama { a = 1 }").isStructureKnown);
  EXPECT_TRUE(Recovered("recipe r { a 1 }").isStructureKnown);
}

TEST(Recovery, BlamesTheBraceThatIsIndentedWrong) {
  Recovered p("recipe r {\n  ddp {\n    a = 1\n  train {\n    b = 2\n  }\n}\n");
  ASSERT_EQ(p.fixIts.size(), 1u);
  ASSERT_EQ(p.fixIts[0].notes.size(), 1u);
  EXPECT_EQ(p.sources.lineColumn(p.fixIts[0].notes[0].range.begin).line, 2u);
}

TEST(Recovery, ALetInASectionIsTheRecipes) {
  EXPECT_TRUE(Recovered("recipe r { s { let n = 1 } }").has("\n  let n\n"));
}

} // namespace
} // namespace shardc
