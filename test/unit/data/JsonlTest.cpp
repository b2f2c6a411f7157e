#include "runtime/data/Jsonl.h"

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

using Texts = std::vector<std::string>;

Texts extract(std::string_view line) {
  Texts texts = {"left over"};
  Status status = extractTexts(line, "text", texts);
  EXPECT_TRUE(status.isOk()) << status.message();
  return texts;
}

Status fails(std::string_view line) {
  Texts texts;
  return extractTexts(line, "text", texts);
}

TEST(Jsonl, FindsTheText) {
  EXPECT_EQ(extract(R"({"text": "a\nb \u00e4"})"), Texts{"a\nb \u00e4"});
  EXPECT_EQ(extract(R"( {"id": [1, {"text": "no"}], "text": "yes", "x": null} )"
                    "\r"),
            Texts{"yes"});
  EXPECT_EQ(extract(R"({"meta": {"text": 5}, "text": ""})"), Texts{""});
}

TEST(Jsonl, TakesListsOfSentences) {
  EXPECT_EQ(extract(R"({"text": ["a", "b", ""]})"), (Texts{"a", "b", ""}));
  EXPECT_EQ(extract(R"({"text": []})"), Texts{});
  EXPECT_EQ(extract(R"({"x": ["a"], "text": "b"})"), Texts{"b"});
}

TEST(Jsonl, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(extract(R"({"text": "a", "text": "b"})"), Texts{"b"});
  EXPECT_EQ(extract(R"({"text": ["a", "b"], "text": ["c"]})"), Texts{"c"});
}

TEST(Jsonl, SaysWhatIsWrong) {
  EXPECT_FAILS(fails(R"({"txt": "a"})"), InvalidInput, "the object has no key 'text'");
  EXPECT_FAILS(fails(R"({"a": {"text": "a"}})"), InvalidInput, "no key 'text'");
  EXPECT_FAILS(fails(R"({"text": 5})"), InvalidInput, "'text' holds a number");
  EXPECT_FAILS(fails(R"({"text": null})"), InvalidInput, "'text' holds null");
  EXPECT_FAILS(fails(R"({"text": {"a": "b"}})"), InvalidInput, "'text' holds an object");
  EXPECT_FAILS(fails(R"({"text": ["a", ["b"]]})"), InvalidInput, "'text' holds a list");
  EXPECT_FAILS(fails(R"({"text": ["a", true]})"), InvalidInput, "'text' holds a boolean");
  EXPECT_FAILS(fails(R"(["text"])"), InvalidInput, "the line is a list, not an object");
  EXPECT_FAILS(fails(R"("text")"), InvalidInput, "the line is a string, not an object");
  EXPECT_FAILS(fails(R"({"text": "a)"), InvalidInput, "malformed JSON at column");
  EXPECT_FAILS(fails(R"({"text": "a"} x)"), InvalidInput, "malformed JSON at column");
  EXPECT_FAILS(fails("{\"text\": \"\xff\"}"), InvalidInput, "ill-formed UTF-8");
}

TEST(Jsonl, DeepNestingIsNoDanger) {
  std::string line =
      R"({"a": )" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + R"(, "text": "b"})";
  EXPECT_EQ(extract(line), Texts{"b"});
}

Texts linesOf(const std::string &path, uint64_t lineBytesMax, Status &status) {
  Texts lines;
  status = forEachLine(path, lineBytesMax, [&](std::string_view line) {
    lines.emplace_back(line);
    return Status::ok();
  });
  return lines;
}

TEST(Lines, AreGivenWithoutBlankOnes) {
  TempFolder folder;
  Status status;
  EXPECT_EQ(linesOf(folder.write("x", "a\n\n b\r\n\t\nc"), 100, status), (Texts{"a", " b\r", "c"}));
  EXPECT_TRUE(status.isOk());
  EXPECT_EQ(linesOf(folder.write("y", ""), 100, status), Texts{});
}

TEST(Lines, GoOverChunks) {
  TempFolder folder;
  std::string first(3'000'000, 'x'), second(1'048'575, 'y');
  Status status;
  Texts lines = linesOf(folder.write("x", first + "\n" + second + "\n"), 1 << 30, status);
  EXPECT_EQ(lines, (Texts{first, second}));
}

TEST(Lines, AreLimited) {
  TempFolder folder;
  Status status;
  linesOf(folder.write("x", "a\nlonger\n"), 5, status);
  EXPECT_FAILS(status, InvalidInput, "x:2': the line has more than 5 bytes");
  linesOf(folder.write("y", std::string(4'000'000, 'x')), 2'000'000, status);
  EXPECT_FAILS(status, InvalidInput, "y:1': the line has more than 2000000 bytes");
}

TEST(Lines, FailuresNameThePlace) {
  TempFolder folder;
  Status status = forEachLine(folder.write("x", "a\n\nb\n"), 100, [](std::string_view line) {
    return line == "b" ? Status(StatusCode::InvalidInput, "bad") : Status::ok();
  });
  EXPECT_FAILS(status, InvalidInput, "x:3': bad");
}

} // namespace
} // namespace shardc::data
