#include "compiler/diag/Engine.h"

#include <gtest/gtest.h>

#include "test/unit/diag/Recorder.h"

namespace shardc {
namespace {

constexpr DiagInfo kEngineFault{Severity::Error, "fault", "", "fault {0}"};
constexpr DiagInfo kDoubt{Severity::Warning, "doubt", "doubts", "doubt"};
constexpr DiagInfo kAside{Severity::Remark, "aside", "asides", "aside"};
constexpr DiagInfo kEngineHint{Severity::Note, "hint", "", "hint"};

class EngineTest : public testing::Test {
protected:
  EngineTest() { engine.addConsumer(recorder); }
  SourceRange at(size_t offset) { return sources.range(buffer, offset, offset + 1); }

  SourceManager sources;
  BufferId buffer = sources.addBuffer("a", "abc\ndef\n");
  DiagEngine engine{sources};
  Recorder recorder{sources};
};

TEST_F(EngineTest, SortsByPlace) {
  engine.report(kEngineFault, at(4), {DiagArg(2)});
  engine.report(kEngineFault, at(0), {DiagArg(1)});
  engine.report(kEngineFault, SourceRange(), {DiagArg(0)});
  engine.finish();
  EXPECT_EQ(recorder.lines,
            (std::vector<std::string>{"error: fault 0 [fault]", "1:1: error: fault 1 [fault]",
                                      "2:1: error: fault 2 [fault]"}));
}

TEST_F(EngineTest, ErrorsStandLast) {
  engine.report(kEngineFault, at(0), {DiagArg(1)});
  engine.report(kDoubt, at(4));
  engine.report(kAside, at(5));
  engine.finish();
  EXPECT_EQ(recorder.lines,
            (std::vector<std::string>{"2:2: remark: aside [aside]", "2:1: warning: doubt [doubt]",
                                      "1:1: error: fault 1 [fault]"}));
}

TEST_F(EngineTest, WhatFollowsComesBehind) {
  engine.report(kEngineFault, at(4), {DiagArg(1)});
  engine.beginPhase();
  engine.report(kEngineFault, at(0), {DiagArg(2)});
  engine.finish();
  EXPECT_EQ(recorder.lines, (std::vector<std::string>{"2:1: error: fault 1 [fault]",
                                                      "1:1: error: fault 2 [fault]"}));
}

TEST_F(EngineTest, NotesStayWithTheirMessage) {
  engine.report(kEngineFault, at(4), {DiagArg(1)}).note(kEngineHint, at(0));
  engine.report(kEngineFault, at(5), {DiagArg(2)});
  engine.finish();
  EXPECT_EQ(recorder.lines[1], "1:1: note: hint [hint]");
}

TEST_F(EngineTest, TypedRowsTakeTheirArguments) {
  engine.report(diag::CannotReadFile, SourceRange(), "no such file");
  engine.finish();
  EXPECT_EQ(recorder.lines[0], "error: no such file [cannot-read-file]");
}

TEST_F(EngineTest, SaysNothingTwice) {
  for (int i = 0; i < 3; ++i)
    engine.report(kEngineFault, at(1), {DiagArg(1)});
  engine.finish();
  EXPECT_EQ(recorder.lines.size(), 1u);
  EXPECT_EQ(engine.numErrors(), 1u);
}

TEST_F(EngineTest, ShowsTwentyErrors) {
  for (int i = 0; i < 25; ++i)
    engine.report(kEngineFault, at(0), {DiagArg(i)});
  engine.report(kDoubt, at(1));
  engine.finish();
  ASSERT_EQ(recorder.lines.size(), 22u);
  EXPECT_EQ(recorder.lines[0], "1:2: warning: doubt [doubt]");
  EXPECT_EQ(recorder.lines[21],
            "error: 5 more errors not shown; the limit is 20 [too-many-errors]");
  EXPECT_EQ(engine.numErrors(), 25u);
}

TEST_F(EngineTest, TheLimitCanBeLifted) {
  engine.setErrorLimit(0);
  for (int i = 0; i < 25; ++i)
    engine.report(kEngineFault, at(0), {DiagArg(i)});
  engine.finish();
  EXPECT_EQ(recorder.lines.size(), 25u);
}

TEST_F(EngineTest, AFloodIsOnlyCounted) {
  for (int i = 0; i < 20'000; ++i)
    engine.report(kEngineFault, at(0), {DiagArg(i)});
  EXPECT_EQ(engine.pending().size(), 10'000u);
  engine.finish();
  EXPECT_EQ(recorder.lines.back(),
            "error: 19980 more errors not shown; the limit is 20 [too-many-errors]");
}

TEST_F(EngineTest, WarningsMayBecomeErrors) {
  engine.flags().addGroup("doubts");
  ASSERT_TRUE(engine.flags().apply("-Werror=doubts").isOk());
  engine.report(kDoubt, at(0));
  EXPECT_TRUE(engine.hasErrors());
  EXPECT_TRUE(engine.pending()[0].promoted);
  engine.finish();
  EXPECT_EQ(recorder.lines[0], "1:1: error: doubt [doubt]");
}

TEST_F(EngineTest, SilencedMessagesTakeTheirNotesAlong) {
  engine.flags().addGroup("doubts");
  ASSERT_TRUE(engine.flags().apply("-Wno-doubts").isOk());
  engine.report(kDoubt, at(0)).note(kEngineHint, at(1));
  engine.finish();
  EXPECT_TRUE(recorder.lines.empty());
  EXPECT_EQ(engine.numWarnings(), 0u);
}

} // namespace
} // namespace shardc
