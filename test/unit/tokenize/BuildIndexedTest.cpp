#include "runtime/tokenize/BuildIndexed.h"

#include <filesystem>

#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/IndexedDataset.h"
#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

/// Builds from files of the folder into its "out".
Result<BuildSummary> build(const TempFolder &folder, std::vector<std::string> names,
                           const BuildOptions &options = {}) {
  for (std::string &name : names)
    name = folder / name;
  return buildIndexed(names, folder / "out", options);
}

/// All sequences of "out"; the end token as '$'.
std::vector<std::string> sequences(const TempFolder &folder) {
  Result<data::IndexedDataset> dataset = data::IndexedDataset::open(folder / "out");
  EXPECT_TRUE(dataset.isOk()) << dataset.status().message();
  std::vector<std::string> result;
  for (size_t i = 0; dataset.isOk() && i < dataset->sequenceLengths().size(); ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(dataset->sequenceLengths()[i]));
    EXPECT_TRUE(dataset->read(static_cast<int64_t>(i), 0, tokens).isOk());
    std::string text;
    for (int32_t token : tokens)
      text += token == data::kByteEndToken ? '$' : static_cast<char>(token);
    result.push_back(text);
  }
  return result;
}

TEST(BuildIndexed, MakesTheFolderOfItsOutput) {
  TempFolder folder;
  std::string input = folder.write("a.txt", "one");
  ASSERT_OK(buildIndexed({&input, 1}, folder / "new/folder/out", {}));
  EXPECT_TRUE(std::filesystem::exists(folder / "new/folder/out.bin"));
}

TEST(BuildIndexed, MakesADocumentOfEachTextFile) {
  TempFolder folder;
  folder.write("in/a.txt", "one");
  folder.write("in/b.txt", "");
  folder.write("in/c.md", "\xc3\xa4\n");
  Result<BuildSummary> summary = build(folder, {"in"});
  ASSERT_OK(summary);
  EXPECT_EQ(summary->files, 3);
  EXPECT_EQ(summary->documents, 3);
  EXPECT_EQ(summary->emptyDocuments, 1);
  EXPECT_EQ(summary->tokens, 8);
  EXPECT_EQ(sequences(folder), (std::vector<std::string>{"one$", "\xc3\xa4\n$"}));
}

TEST(BuildIndexed, MakesADocumentOfEachJsonLine) {
  TempFolder folder;
  folder.write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": [\"two\", \"\", \"three\"]}\n\n"
                          "{\"text\": \"\"}\n{\"text\": \"four\"}");
  Result<BuildSummary> summary = build(folder, {"a.jsonl"});
  ASSERT_OK(summary);
  EXPECT_EQ(summary->documents, 4);
  EXPECT_EQ(summary->emptyDocuments, 1);
  EXPECT_EQ(sequences(folder), (std::vector<std::string>{"one$", "two", "three$", "four$"}));
}

TEST(BuildIndexed, MakesADocumentOfEachElementOfAnArray) {
  TempFolder folder;
  folder.write("a.json", "[{\"text\": \"one\"},\n {\"text\": \"two\"}]\n");
  ASSERT_OK(build(folder, {"a.json"}));
  EXPECT_EQ(sequences(folder), (std::vector<std::string>{"one$", "two$"}));
}

TEST(BuildIndexed, LinesAreLimitedAndNamed) {
  TempFolder folder;
  folder.write("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"longer\"}\n");
  EXPECT_FAILS(build(folder, {"a.jsonl"}, {.lineBytesMax = 15}).status(), InvalidInput,
               "a.jsonl:3': the line has more than 15 bytes");
  folder.write("b.jsonl", "{\"text\": \"a\"}\n\n{}\n");
  EXPECT_FAILS(build(folder, {"b.jsonl"}).status(), InvalidInput, "b.jsonl:3': the object has no");
}

TEST(BuildIndexed, OptionsChooseKeyFormatAndEnd) {
  TempFolder folder;
  folder.write("a.txt", "{\"body\": \"one\"}\n");
  ASSERT_OK(build(folder, {"a.txt"},
                  {.format = InputFormat::Jsonl, .jsonKey = "body", .appendEod = false}));
  EXPECT_EQ(sequences(folder), std::vector<std::string>{"one"});
  ASSERT_OK(build(folder, {"a.txt"}));
  EXPECT_EQ(sequences(folder), std::vector<std::string>{"{\"body\": \"one\"}\n$"});
}

TEST(BuildIndexed, LargeTextGoesThroughInPieces) {
  TempFolder folder;
  std::string text(2'500'000, 'x');
  text[1'048'576] = 'y';
  folder.write("a.txt", text);
  ASSERT_OK(build(folder, {"a.txt"}));
  EXPECT_EQ(sequences(folder), std::vector<std::string>{text + "$"});
}

TEST(BuildIndexed, FailuresLeaveWhatWasThere) {
  TempFolder folder;
  folder.write("good.txt", "one");
  folder.write("bad.jsonl", "{\"text\": \"one\"}\n{\"text\": 1}\n");
  ASSERT_OK(build(folder, {"good.txt"}));
  std::string idx = contentsOf(folder / "out.idx");
  EXPECT_FAILS(build(folder, {"bad.jsonl"}).status(), InvalidInput,
               "bad.jsonl:2': 'text' holds a number");
  EXPECT_EQ(contentsOf(folder / "out.idx"), idx);
  EXPECT_EQ(sequences(folder), std::vector<std::string>{"one$"});
  for (const auto &entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << entry.path();
}

TEST(BuildIndexed, RefusesInputsThatMakeNoDataset) {
  TempFolder folder;
  folder.write("empty.txt", "");
  EXPECT_FAILS(build(folder, {"empty.txt"}).status(), InvalidInput, "the input contains no text");
  EXPECT_FAILS(build(folder, {"none.txt"}).status(), NotFound, "none.txt");
  folder.write("out.bin", "xx");
  EXPECT_FAILS(build(folder, {"out.bin"}).status(), InvalidInput, "both input and output");
}

} // namespace
} // namespace shardc::tokenize
