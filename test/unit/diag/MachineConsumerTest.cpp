
#include <gtest/gtest.h>

#include "compiler/diag/Consumers.h"
#include "runtime/base/Json.h"

namespace shardc {
namespace {

using Json = nlohmann::json;

constexpr DiagInfo kMachineFault{Severity::Error, "fault", "", "fault '{0}'"};
constexpr DiagInfo kMachineHint{Severity::Note, "hint", "", "hint"};

class MachineConsumerTest : public testing::Test {
protected:
  /// One error with a note and a fix-it, and one without a place, shown by a consumer.
  std::string show(decltype(makeJsonConsumer) *make) {
    std::string text;
    llvm::raw_string_ostream out(text);
    auto consumer = make(sources, out, {});
    DiagEngine engine(sources);
    engine.addConsumer(*consumer);
    SourceRange range = sources.range(buffer, 6, 8);
    engine.report(kMachineFault, range, {DiagArg("x\"\xFF")})
        .fixIt(FixIt::replace(range, "lr", FixItKind::Alternative))
        .note(kMachineHint, sources.range(buffer, 0, 2));
    engine.report(kMachineFault, SourceRange(), {DiagArg("nowhere")});
    engine.finish();
    return out.str();
  }

  SourceManager sources;
  BufferId buffer = sources.addBuffer("dir/a b.recipe", "\xF0\x9F\x98\x80\n rl = 1\n");
};

TEST_F(MachineConsumerTest, JsonHasOneObjectALine) {
  std::string text = show(makeJsonConsumer);
  EXPECT_EQ(llvm::StringRef(text).count('\n'), 2u);
  Json nowhere = Json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(nowhere["text"], "fault 'nowhere'");
  EXPECT_FALSE(nowhere.contains("range"));
}

TEST_F(MachineConsumerTest, JsonGivesPlacesAndEdits) {
  std::string text = show(makeJsonConsumer);
  Json fault = Json::parse(text.substr(text.find('\n') + 1));
  EXPECT_EQ(fault["severity"], "error");
  EXPECT_EQ(fault["id"], "fault");
  EXPECT_EQ(fault["file"], "dir/a b.recipe");
  EXPECT_EQ(fault["range"]["begin"], (Json{{"line", 2}, {"column", 2}, {"offset", 6}}));
  EXPECT_EQ(fault["fixits"][0]["kind"], "alternative");
  EXPECT_EQ(fault["fixits"][0]["edits"][0]["text"], "lr");
  EXPECT_EQ(fault["notes"][0]["id"], "hint");
}

TEST_F(MachineConsumerTest, SarifHasResultsWithRegionsAndFixes) {
  Json document = Json::parse(show(makeSarifConsumer));
  EXPECT_EQ(document["version"], "2.1.0");
  Json run = document["runs"][0];
  EXPECT_EQ(run["tool"]["driver"]["rules"], (Json::array({{{"id", "fault"}}})));
  ASSERT_EQ(run["results"].size(), 2u);
  Json result = run["results"][1];
  EXPECT_EQ(result["level"], "error");
  Json place = result["locations"][0]["physicalLocation"];
  EXPECT_EQ(place["artifactLocation"]["uri"], "dir/a%20b.recipe");
  EXPECT_EQ(place["region"],
            (Json{{"startLine", 2}, {"startColumn", 2}, {"endLine", 2}, {"endColumn", 4}}));
  EXPECT_EQ(result["relatedLocations"][0]["message"]["text"], "hint");
  EXPECT_EQ(result["fixes"][0]["artifactChanges"][0]["replacements"][0]["insertedContent"]["text"],
            "lr");
}

TEST_F(MachineConsumerTest, SarifCountsUtf16Units) {
  Json document = Json::parse(show(makeSarifConsumer));
  Json region =
      document["runs"][0]["results"][1]["relatedLocations"][0]["physicalLocation"]["region"];
  EXPECT_EQ(region["startColumn"], 1);
}

} // namespace
} // namespace shardc
