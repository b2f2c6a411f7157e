#include "compiler/basic/SourceManager.h"

#include <cstdio>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "compiler/basic/Library.h"
#include "test/unit/support/TempFolder.h"

namespace shardc {
namespace {

TEST(SourceManager, CountsLinesAndColumns) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a.recipe", "one\ntwo é x\n");
  LineColumn place = sources.lineColumn(sources.loc(id, 4));
  EXPECT_EQ(place.file, "a.recipe");
  EXPECT_EQ(place.line, 2u);
  EXPECT_EQ(place.column, 1u);
  // The é is two bytes and one column.
  EXPECT_EQ(sources.lineColumn(sources.loc(id, 11)).column, 7u);
  EXPECT_EQ(sources.lineText(sources.loc(id, 5)), "two é x");
}

TEST(SourceManager, TheEndIsALocation) {
  SourceManager sources;
  BufferId first = sources.addBuffer("a", "x\n");
  BufferId second = sources.addBuffer("b", "");
  EXPECT_EQ(sources.bufferOf(sources.loc(first, 2)), first);
  EXPECT_EQ(sources.lineColumn(sources.loc(first, 2)).line, 2u);
  EXPECT_EQ(sources.bufferOf(sources.loc(second, 0)), second);
  EXPECT_EQ(sources.lineText(sources.loc(second, 0)), "");
}

TEST(SourceManager, PartsKeepTheLinesOfTheirFile) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "x\ny\n", 10);
  EXPECT_EQ(sources.lineColumn(sources.loc(id, 2)).line, 11u);
  EXPECT_EQ(sources.offset(sources.lineBegin(id, 11)), 2u);
  EXPECT_FALSE(sources.lineBegin(id, 9).isValid());
  EXPECT_FALSE(sources.lineBegin(id, 99).isValid());
}

TEST(SourceManager, SettingsAreNamedByTheirText) {
  SourceManager sources;
  BufferId id = sources.addSetting("a.b=c");
  EXPECT_EQ(sources.name(id), "<--set a.b=c>");
  EXPECT_EQ(sources.text(id), "a.b=c");
  EXPECT_FALSE(sources.isFile(id));
}

TEST(SourceManager, CountsUtf16Columns) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", "\xF0\x9F\x98\x80x"); // one code point, two UTF-16 units
  EXPECT_EQ(sources.lineColumn(sources.loc(id, 4)).column, 2u);
  EXPECT_EQ(sources.utf16Column(sources.loc(id, 4)), 3u);
}

TEST(SourceManager, LoadsAFileOnce) {
  test::TempFolder folder;
  std::string path = folder.write("once.recipe", "recipe a {}");
  SourceManager sources;
  Result<BufferId> first = sources.loadFile(path);
  Result<BufferId> second = sources.loadFile(path);
  ASSERT_TRUE(first.isOk() && second.isOk());
  EXPECT_EQ(*first, *second);
  EXPECT_TRUE(sources.isFile(*first));
  Result<BufferId> missing = sources.loadFile(path + ".not");
  ASSERT_FALSE(missing.isOk());
  EXPECT_EQ(missing.status().code(), StatusCode::NotFound);
}

TEST(SourceManager, RefusesAFileThatIsTooLarge) {
  test::TempFolder folder;
  std::string path = folder / "large.recipe";
  std::ofstream(path).seekp(static_cast<std::streamoff>(kRecipeBytesMax)).put('x');
  SourceManager sources;
  EXPECT_FALSE(sources.loadFile(path).isOk());
}

std::string removed(llvm::StringRef text, size_t begin, size_t end) {
  SourceManager sources;
  BufferId id = sources.addBuffer("a", text.str());
  SourceRange range = sources.removalRange(sources.range(id, begin, end));
  std::string out = text.str();
  return out.erase(sources.offset(range.begin), range.sizeBytes());
}

TEST(SourceManager, RemovesWithoutATrace) {
  EXPECT_EQ(removed("a\n  b = 1\nc\n", 4, 9), "a\nc\n"); // the whole line
  EXPECT_EQ(removed("a = 1  b = 2\n", 7, 12), "a = 1\n");
  EXPECT_EQ(removed("  a = 1  b = 2\n", 2, 7), "  b = 2\n");
  EXPECT_EQ(removed("x", 0, 1), "");
}

TEST(SourceManager, ReadsRecipesThatComeWithThePrograms) {
  SourceManager sources;
  Result<BufferId> found = sources.loadFile("shardc:llama3/../debug/./quickstart.recipe");
  ASSERT_TRUE(found.isOk()) << found.status().message();
  EXPECT_EQ(sources.name(*found), "shardc:debug/quickstart.recipe");
  EXPECT_FALSE(sources.isFile(*found));
  EXPECT_EQ(*sources.loadFile("shardc:debug/quickstart.recipe"), *found);
  Result<BufferId> missing = sources.loadFile("shardc:debug/nothing.recipe");
  ASSERT_FALSE(missing.isOk());
  EXPECT_NE(missing.status().message().find("share/shardc/recipes/debug/nothing.recipe"),
            std::string::npos);
}

TEST(Library, NamesLeadNowhereElse) {
  EXPECT_EQ(normalLibraryName("shardc:a/../b.recipe"), "shardc:b.recipe");
  EXPECT_EQ(normalLibraryName("shardc:../../b.recipe"), "shardc:b.recipe");
  EXPECT_EQ(normalLibraryName("shardc:/b.recipe"), "shardc:b.recipe");
  EXPECT_EQ(normalLibraryName("shardc:"), "shardc:");
  EXPECT_EQ(besideInLibrary("shardc:a/b.recipe", "../c.recipe"), "shardc:c.recipe");
  EXPECT_EQ(besideInLibrary("shardc:b.recipe", "c.recipe"), "shardc:c.recipe");
  EXPECT_EQ(filePathOf("./shardc:b.recipe"), "./shardc:b.recipe");
}

} // namespace
} // namespace shardc
