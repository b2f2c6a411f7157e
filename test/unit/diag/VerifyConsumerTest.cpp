#include "compiler/diag/VerifyConsumer.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

constexpr DiagInfo kVerifyFault{Severity::Error, "fault", "", "fault '{0}'"};
constexpr DiagInfo kVerifyHint{Severity::Note, "hint", "", "hint"};
constexpr DiagInfo kVerifyRemark{Severity::Remark, "remark", "remarks", "by the way"};

class VerifyTest : public testing::Test {
protected:
  /// Compares the messages that `report` sends with what `text` expects. Returns the differences.
  template <typename Report>
  std::string verify(llvm::StringRef text, Report report, bool ignoreRemarks = false) {
    SourceManager sources;
    BufferId id = sources.addBuffer("a.recipe", text.str());
    DiagEngine engine(sources);
    VerifyConsumer consumer(sources, id, ignoreRemarks);
    engine.addConsumer(consumer);
    report(engine, sources, id);
    engine.finish();
    std::string out;
    llvm::raw_string_ostream stream(out);
    bool isGood = consumer.check(stream);
    EXPECT_EQ(isGood, stream.str().empty());
    return stream.str();
  }
  /// One error at the head of line `line`.
  std::string verifyError(llvm::StringRef text, unsigned line) {
    return verify(text, [&](DiagEngine &engine, SourceManager &sources, BufferId id) {
      engine.report(kVerifyFault, SourceRange(sources.lineBegin(id, line)), {DiagArg("x")});
    });
  }
  static constexpr auto kNothing = [](DiagEngine &, SourceManager &, BufferId) {};
};

TEST_F(VerifyTest, MatchesTextAndId) {
  EXPECT_EQ(verifyError("x // expected-error {{fault 'x'}}\n", 1), "");
  EXPECT_EQ(verifyError("x // expected-error {{[fault]}}\n", 1), "");
}

TEST_F(VerifyTest, MatchesOtherLines) {
  EXPECT_EQ(verifyError("// expected-error@+1 {{fault}}\nx\n", 2), "");
  EXPECT_EQ(verifyError("x\n\n// expected-error@-2 {{fault}}\n", 1), "");
  EXPECT_EQ(verifyError("x\ny\n// expected-error@2 {{fault}}\n", 2), "");
  EXPECT_EQ(verifyError("x\ny\n// expected-error@* {{fault}}\n", 2), "");
  EXPECT_EQ(verifyError("x\n// expected-error@a.recipe:1 {{fault}}\n", 1), "");
}

TEST_F(VerifyTest, ReportsWhatIsMissing) {
  EXPECT_EQ(verify("\n// expected-error {{fault}}\n", kNothing),
            "a.recipe:2: expected error was not reported: fault\n");
}

TEST_F(VerifyTest, ReportsWhatIsNotExpected) {
  EXPECT_EQ(verifyError("x\n", 1), "a.recipe:1: error was not expected: fault 'x' [fault]\n");
}

TEST_F(VerifyTest, OtherSeveritiesTextsAndLinesDoNotMatch) {
  EXPECT_NE(verifyError("x // expected-warning {{fault}}\n", 1), "");
  EXPECT_NE(verifyError("x // expected-error {{other}}\n", 1), "");
  EXPECT_NE(verifyError("x // expected-error@+1 {{fault}}\n", 1), "");
}

TEST_F(VerifyTest, CountsRepeats) {
  auto twice = [](DiagEngine &engine, SourceManager &sources, BufferId id) {
    engine.report(kVerifyFault, sources.range(id, 0, 1), {DiagArg("x")});
    engine.report(kVerifyFault, sources.range(id, 1, 2), {DiagArg("x")});
  };
  EXPECT_EQ(verify("xy // expected-error 2 {{fault}}\n", twice), "");
  EXPECT_NE(verify("xy // expected-error {{fault}}\n", twice), "");
  EXPECT_NE(verify("xy // expected-error 3 {{fault}}\n", twice), "");
}

TEST_F(VerifyTest, ZeroMeansNever) {
  auto remark = [](DiagEngine &engine, SourceManager &sources, BufferId id) {
    engine.report(kVerifyRemark, sources.range(id, 0, 1));
  };
  EXPECT_EQ(verify("x // expected-remark@* 0 {{no such text}}\n", remark, true), "");
  EXPECT_NE(verify("x // expected-remark@* 0 {{way}}\n", remark, true), "");
  EXPECT_EQ(verify("x // expected-remark@* 0 {{way}}\n", kNothing), "");
}

TEST_F(VerifyTest, NotesAreExpectedToo) {
  auto withNote = [](DiagEngine &engine, SourceManager &sources, BufferId id) {
    engine.report(kVerifyFault, sources.range(id, 0, 1), {DiagArg("x")})
        .note(kVerifyHint, SourceRange());
  };
  EXPECT_EQ(verify("x // expected-error {{fault}} expected-note@* {{hint}}\n", withNote), "");
  EXPECT_NE(verify("x // expected-error {{fault}}\n", withNote), "");
}

TEST_F(VerifyTest, RemarksMayBePassedOver) {
  auto remark = [](DiagEngine &engine, SourceManager &sources, BufferId id) {
    engine.report(kVerifyRemark, sources.range(id, 0, 1))
        .note(kVerifyHint, sources.range(id, 0, 1));
  };
  EXPECT_EQ(verify("x\n", remark, /*ignoreRemarks=*/true), "");
  EXPECT_NE(verify("x\n", remark), "");
  EXPECT_EQ(verify("x // expected-remark {{way}} expected-note {{hint}}\n", remark, true), "");
}

TEST_F(VerifyTest, MalformedExpectationsFail) {
  EXPECT_NE(verify("// expected-error fault\n", kNothing), "");
  EXPECT_NE(verify("// expected-error@x {{a}}\n", kNothing), "");
  EXPECT_NE(verify("// expected-error@-9 {{a}}\n", kNothing), "");
  EXPECT_NE(verify("// expected-error {{a\n", kNothing), "");
  EXPECT_EQ(verify("// nothing is expected-ly said\n", kNothing), "");
}

TEST(SplitInput, KeepsLineNumbers) {
  std::vector<InputPart> parts = splitInput("a\n// -----\nb\nc\n// ----- end\n");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text, "a\n");
  EXPECT_EQ(parts[1].text, "b\nc\n");
  EXPECT_EQ(parts[1].firstLine, 3u);
  EXPECT_EQ(parts[2].text, "");
  EXPECT_EQ(splitInput("").size(), 1u);
}

} // namespace
} // namespace shardc
