#include "runtime/data/InputFiles.h"

#include <filesystem>

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

std::vector<std::string> expand(const TempFolder &folder, const std::vector<std::string> &inputs) {
  std::vector<std::string> absolute;
  for (const std::string &input : inputs)
    absolute.push_back(folder / input);
  Result<std::vector<std::string>> files = expandInputs(absolute);
  EXPECT_TRUE(files.isOk()) << files.status().message();
  if (!files.isOk())
    return {};
  for (std::string &file : *files)
    file = file.substr(folder.path().size() + 1);
  return *files;
}

TEST(InputFiles, FoldersAreSortedAndHiddenNamesLeftOut) {
  TempFolder folder;
  for (const char *name :
       {"d/b.txt", "d/a/z.txt", "d/a.txt", "d/.git/config", "d/.hidden", "d/B.md"})
    folder.write(name, "x");
  std::filesystem::create_directory_symlink(folder / "d", folder / "d/loop");
  EXPECT_EQ(expand(folder, {"d"}),
            (std::vector<std::string>{"d/B.md", "d/a.txt", "d/a/z.txt", "d/b.txt"}));
}

/// A folder of somebody else must not lead to other files. A link may be named itself.
TEST(InputFiles, LinksInAFolderAreRefused) {
  TempFolder folder;
  folder.write("secret", "x");
  folder.write("d/a.txt", "x");
  std::filesystem::create_symlink("../secret", folder / "d/b.txt");
  std::vector<std::string> inputs = {folder / "d"};
  Result<std::vector<std::string>> found = expandInputs(inputs);
  ASSERT_FALSE(found.isOk());
  EXPECT_NE(found.status().message().find("b.txt' is a link"), std::string::npos)
      << found.status().message();
  EXPECT_EQ(expand(folder, {"d/b.txt"}), (std::vector<std::string>{"d/b.txt"}));
}

TEST(InputFiles, InputsKeepTheirOrder) {
  TempFolder folder;
  folder.write("2.txt", "x");
  folder.write("1.txt", "x");
  EXPECT_EQ(expand(folder, {"2.txt", "1.txt", "2.txt"}),
            (std::vector<std::string>{"2.txt", "1.txt", "2.txt"}));
}

TEST(InputFiles, PatternsNameFiles) {
  TempFolder folder;
  for (const char *name : {"p2.txt", "p1.txt", "p1.md", "p3.txt/x", "[x].txt"})
    folder.write(name, "x");
  EXPECT_EQ(expand(folder, {"p*.txt"}), (std::vector<std::string>{"p1.txt", "p2.txt"}));
  EXPECT_EQ(expand(folder, {"p[1]*"}), (std::vector<std::string>{"p1.md", "p1.txt"}));
  EXPECT_EQ(expand(folder, {"[x].txt"}), (std::vector<std::string>{"[x].txt"}));
}

TEST(InputFiles, WhatNamesNothingIsSaid) {
  TempFolder folder;
  std::filesystem::create_directories(folder / "empty");
  auto fails = [&](const std::string &name) {
    std::string path = folder / name;
    return expandInputs({&path, 1}).status();
  };
  EXPECT_FAILS(fails("none.txt"), NotFound, "there is no file or folder");
  EXPECT_FAILS(fails("no*.txt"), NotFound, "no file matches");
  EXPECT_FAILS(fails("em*"), NotFound, "only folders match");
  EXPECT_FAILS(fails("empty"), NotFound, "contains no files");
  folder.write("a.jsonl.gz", "x");
  EXPECT_FAILS(fails("a.jsonl.gz"), InvalidInput, "is compressed; unpack it first");
  folder.write("d/x.idx", "");
  folder.write("d/x.bin", "");
  EXPECT_FAILS(fails("d/x.bin"), InvalidInput, "belongs to an indexed dataset");
  EXPECT_FAILS(fails("d"), InvalidInput, "named by its prefix");
}

} // namespace
} // namespace shardc::data
