#include "compiler/diag/Consumers.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

Diagnostic makeError(SourceRange range) {
  Diagnostic d;
  d.id = "some-id";
  d.text = "wrong";
  d.range = range;
  return d;
}

/// The text form of a diagnostic without colour.
std::string renderText(const SourceManager &sources, const Diagnostic &diagnostic) {
  std::string text;
  llvm::raw_string_ostream out(text);
  makeTextConsumer(sources, out, {.color = ColorMode::Never})->handle(diagnostic);
  return out.str();
}

TEST(TextConsumer, ShowsLineCaretAndRange) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a.recipe", "x {\n  lr = 3e-4\n}\n");
  Diagnostic d = makeError(sources.range(id, 11, 15));
  d.highlights.push_back(sources.range(id, 6, 8));
  EXPECT_EQ(renderText(sources, d), "a.recipe:2:8: error: wrong [some-id]\n"
                                    "  lr = 3e-4\n"
                                    "  ~~   ^~~~\n");
}

TEST(TextConsumer, ShowsNotesAndTheRepair) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "abc\ndef\n");
  Diagnostic d = makeError(sources.range(id, 4, 5));
  d.fixIts.push_back(FixIt::replace(sources.range(id, 4, 5), "DD"));
  Message note = d;
  note.severity = Severity::Note;
  note.text = "here";
  note.fixIts.clear();
  note.range = sources.range(id, 1, 2);
  d.notes.push_back(note);
  EXPECT_EQ(renderText(sources, d), "a:2:1: error: wrong [some-id]\ndef\n^\nDD\n"
                                    "a:1:2: note: here [some-id]\nabc\n ^\n");
}

TEST(TextConsumer, NeedsNoPlace) {
  SourceManager sources;
  EXPECT_EQ(renderText(sources, makeError({})), "shardc: error: wrong [some-id]\n");
}

TEST(TextConsumer, AlignsBelowTabsAndWideText) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "\té = x\n");
  EXPECT_EQ(renderText(sources, makeError(sources.range(id, 6, 7))),
            "a:1:6: error: wrong [some-id]\n"
            "\té = x\n"
            "\t    ^\n");
}

TEST(TextConsumer, RangesEndWithTheirLine) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "ab\ncd\n");
  EXPECT_EQ(renderText(sources, makeError(sources.range(id, 1, 5))),
            "a:1:2: error: wrong [some-id]\nab\n ^\n");
  EXPECT_EQ(renderText(sources, makeError(sources.range(id, 6, 6))),
            "a:3:1: error: wrong [some-id]\n\n^\n");
}

TEST(TextConsumer, CutsLongLinesRoundTheCaret) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", std::string(5000, 'x') + "!" + std::string(5000, 'y'));
  std::string text = renderText(sources, makeError(sources.range(id, 5000, 5001)));
  EXPECT_LT(text.size(), 500u);
  EXPECT_NE(text.find("x!y"), std::string::npos);
}

TEST(TextConsumer, KeepsControlCharactersFromTheTerminal) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "\x1B[31m\n");
  EXPECT_EQ(renderText(sources, makeError(sources.range(id, 0, 1))),
            "a:1:1: error: wrong [some-id]\n?[31m\n^\n");
}

/// A remark of two groups, a warning, each with a place and a note.
std::string show(TextOptions options) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "abc\n");
  std::string text;
  llvm::raw_string_ostream out(text);
  auto consumer = makeTextConsumer(sources, out, std::move(options));
  DiagEngine engine(sources);
  engine.addConsumer(*consumer);
  SourceRange place = sources.range(id, 1, 2);
  constexpr DiagInfo kHint{Severity::Note, "hint", "", "hint"};
  engine.report(DiagInfo{Severity::Warning, "doubt", "doubts", "doubt"}, place);
  for (llvm::StringRef group : {"twin-options", "fsdp-adjustments", "advice", "of a pass"})
    engine.report(DiagInfo{Severity::Remark, group, group, "aside"}, place).note(kHint, place);
  engine.report(DiagInfo{Severity::Remark, "follows", "left-open", "follows"}, SourceRange())
      .asConsequence();
  engine.finish();
  return out.str();
}

TEST(TextConsumer, CountsRemarksByKind) {
  std::string counts = "1 setting derived from others, 2 settings adjusted, 1 recommendation, "
                       "1 other remark (list them: ",
              warning = "a:1:2: warning: doubt [doubt]\nabc\n ^\n";
  EXPECT_EQ(show({.remarks = RemarkMode::Counted, .recipe = "x.recipe", .explain = "a command"}),
            warning + "x.recipe: " + counts + "a command)\n");
  EXPECT_EQ(show({.remarks = RemarkMode::Counted}), warning + "shardc: " + counts + "--remarks)\n");
}

TEST(TextConsumer, ShowsRemarksInALineEach) {
  EXPECT_EQ(show({.remarks = RemarkMode::Lines}),
            "shardc: remark: follows [follows]\na:1:2: remark: aside [twin-options]\na:1:2: "
            "remark: aside [fsdp-adjustments]\n"
            "a:1:2: remark: aside [advice]\na:1:2: remark: aside [of a pass]\n"
            "a:1:2: warning: doubt [doubt]\nabc\n ^\n");
}

TEST(TextConsumer, HidesRemarks) {
  EXPECT_EQ(show({.remarks = RemarkMode::Hidden}), "a:1:2: warning: doubt [doubt]\nabc\n ^\n");
}

TEST(TextConsumer, ColorsOnRequest) {
  SourceManager sources;
  std::string text;
  llvm::raw_string_ostream out(text);
  makeTextConsumer(sources, out, {.color = ColorMode::Always})->handle(makeError({}));
  EXPECT_NE(out.str().find("\x1B["), std::string::npos);
}

} // namespace
} // namespace shardc
