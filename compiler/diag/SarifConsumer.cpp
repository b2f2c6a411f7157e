// Writes diagnostics as a SARIF 2.1.0 log: results with their locations, notes and fixes.
#include "compiler/diag/Consumers.h"
#include "runtime/base/Json.h"

#include <map>

#include "llvm/ADT/StringExtras.h"

namespace shardc {

namespace {

using Json = nlohmann::ordered_json;

llvm::StringRef sarifLevel(Severity severity) {
  switch (severity) {
  case Severity::Error:
    return "error";
  case Severity::Warning:
    return "warning";
  case Severity::Remark:
  case Severity::Note:
    return "note";
  }
  return "none";
}

/// A path as a URI reference: characters that RFC 3986 does not allow are percent-encoded.
std::string uriOf(llvm::StringRef path) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (char c : path) {
    bool plain = llvm::isAlnum(c) || llvm::StringRef("-._~/").contains(c);
    uint8_t byte = static_cast<uint8_t>(c);
    out += plain ? std::string(1, c) : std::string{'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

Json regionJson(const SourceManager &sources, SourceRange range) {
  return {{"startLine", sources.lineColumn(range.begin).line},
          {"startColumn", sources.utf16Column(range.begin)},
          {"endLine", sources.lineColumn(range.end).line},
          {"endColumn", sources.utf16Column(range.end)}};
}

Json artifactJson(const SourceManager &sources, SourceRange range) {
  return {{"uri", uriOf(sources.name(sources.bufferOf(range.begin)))}};
}

Json locationJson(const SourceManager &sources, SourceRange range) {
  return {{"physicalLocation",
           {{"artifactLocation", artifactJson(sources, range)},
            {"region", regionJson(sources, range)}}}};
}

Json sarifFix(const SourceManager &sources, const FixIt &fix, const std::string &text) {
  std::map<std::string, Json> byFile; // SARIF groups edits of a fix by file
  for (const TextEdit &edit : fix.edits) {
    Json &change = byFile[sources.name(sources.bufferOf(edit.range.begin)).str()];
    change["artifactLocation"] = artifactJson(sources, edit.range);
    change["replacements"].push_back({{"deletedRegion", regionJson(sources, edit.range)},
                                      {"insertedContent", {{"text", edit.text}}}});
  }
  Json changes = Json::array();
  for (auto &[file, change] : byFile)
    changes.push_back(std::move(change));
  return {{"description", {{"text", text}}}, {"artifactChanges", std::move(changes)}};
}

class SarifConsumer : public DiagConsumer {
public:
  SarifConsumer(const SourceManager &sources, llvm::raw_ostream &out, std::string recipe)
      : sources_(sources), out_(out), recipe_(std::move(recipe)) {}

  /// Adds a diagnostic to the log. Notes become related locations. A message without a location
  /// gets the recipe's file.
  void handle(const Diagnostic &diagnostic) override {
    Json result = {{"ruleId", diagnostic.id},
                   {"level", sarifLevel(diagnostic.severity).str()},
                   {"message", {{"text", diagnostic.text}}}};
    if (diagnostic.range.isValid())
      result["locations"] = Json::array({locationJson(sources_, diagnostic.range)});
    else if (!recipe_.empty())
      result["locations"] =
          Json::array({{{"physicalLocation", {{"artifactLocation", {{"uri", uriOf(recipe_)}}}}}}});
    Json related = Json::array();
    Json fixes = Json::array();
    for (const FixIt &fix : diagnostic.fixIts)
      fixes.push_back(sarifFix(sources_, fix, diagnostic.text));
    for (const Message &note : diagnostic.notes) {
      Json location = note.range.isValid() ? locationJson(sources_, note.range) : Json::object();
      location["message"] = {{"text", note.text}};
      related.push_back(std::move(location));
      for (const FixIt &fix : note.fixIts)
        fixes.push_back(sarifFix(sources_, fix, note.text));
    }
    if (!related.empty())
      result["relatedLocations"] = std::move(related);
    if (!fixes.empty())
      result["fixes"] = std::move(fixes);
    results_.push_back(std::move(result));
    rules_.emplace(diagnostic.id, Json{{"id", diagnostic.id}});
  }

  void finish() override {
    Json rules = Json::array();
    for (auto &[id, rule] : rules_)
      rules.push_back(rule);
    Json driver = {{"name", "shardc"}, {"rules", std::move(rules)}};
    Json run = {{"tool", {{"driver", std::move(driver)}}},
                {"columnKind", "utf16CodeUnits"},
                {"results", std::move(results_)}};
    Json document = {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
                     {"version", "2.1.0"},
                     {"runs", Json::array({std::move(run)})}};
    out_ << toText(document, 2, /*isAscii=*/true) << '\n';
  }

private:
  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  std::string recipe_;
  Json results_ = Json::array();
  std::map<std::string, Json> rules_; ///< by id
};

} // namespace

std::unique_ptr<DiagConsumer> makeSarifConsumer(const SourceManager &sources,
                                                llvm::raw_ostream &out, std::string recipe) {
  return std::make_unique<SarifConsumer>(sources, out, std::move(recipe));
}

} // namespace shardc
