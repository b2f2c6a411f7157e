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

} // namespace
} // namespace shardc::data
