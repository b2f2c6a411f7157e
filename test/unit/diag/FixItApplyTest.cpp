#include "compiler/diag/FixItApply.h"

#include <cstdio>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "test/unit/support/TempFolder.h"

namespace shardc {
namespace {

class FixItApplyTest : public testing::Test {
protected:
  void SetUp() override {
    path = folder.write("fixit.recipe", "a = 1\nb = 2\n");
    Result<BufferId> loaded = sources.loadFile(path);
    ASSERT_TRUE(loaded.isOk());
    id = *loaded;
  }

  void offer(FixIt fix) {
    Diagnostic d;
    d.fixIts.push_back(std::move(fix));
    diagnostics.push_back(std::move(d));
  }
  SourceRange at(size_t begin, size_t end) { return sources.range(id, begin, end); }
  std::string text() { return applyFixIts(sources, diagnostics, false).texts[id]; }

  test::TempFolder folder;
  std::string path;
  SourceManager sources;
  BufferId id;
  std::vector<Diagnostic> diagnostics;
};

TEST_F(FixItApplyTest, MakesEditsOfAllMessages) {
  offer(FixIt::replace(at(4, 5), "10"));
  offer(FixIt::remove(at(6, 12)));
  offer(FixIt::insert(at(0, 0).begin, "// c\n"));
  EXPECT_EQ(text(), "// c\na = 10\n");
}

TEST_F(FixItApplyTest, MakesFixItsOfNotes) {
  Diagnostic d;
  d.notes.emplace_back();
  d.notes[0].fixIts.push_back(FixIt::replace(at(0, 1), "z"));
  diagnostics.push_back(d);
  EXPECT_EQ(text(), "z = 1\nb = 2\n");
}

TEST_F(FixItApplyTest, LeavesAlternativesAndRecommendations) {
  offer(FixIt::replace(at(0, 1), "x", FixItKind::Alternative));
  offer(FixIt::replace(at(6, 7), "y", FixItKind::Recommended));
  EXPECT_TRUE(applyFixIts(sources, diagnostics, false).texts.empty());
  EXPECT_EQ(applyFixIts(sources, diagnostics, true).texts[id], "a = 1\ny = 2\n");
}

TEST_F(FixItApplyTest, TheFirstOfTwoThatOverlapWins) {
  offer(FixIt::replace(at(0, 5), "x"));
  offer(FixIt::replace(at(4, 5), "y").andReplace(at(6, 7), "z"));
  FixItResult result = applyFixIts(sources, diagnostics, false);
  EXPECT_EQ(result.texts[id], "x\nb = 2\n"); // all edits of the second are left out
  EXPECT_EQ(result.numApplied, 1u);
  EXPECT_EQ(result.numConflicts, 1u);
}

TEST_F(FixItApplyTest, EqualEditsCountOnce) {
  offer(FixIt::insert(at(5, 5).begin, " // c"));
  offer(FixIt::insert(at(5, 5).begin, " // c"));
  EXPECT_EQ(text(), "a = 1 // c\nb = 2\n");
}

TEST_F(FixItApplyTest, LeavesTheCommandLineAlone) {
  BufferId setting = sources.addSetting("a=1");
  offer(FixIt::replace(sources.range(setting, 0, 1), "b"));
  FixItResult result = applyFixIts(sources, diagnostics, false);
  EXPECT_TRUE(result.texts.empty());
  EXPECT_EQ(result.numConflicts, 1u);
}

} // namespace
} // namespace shardc
