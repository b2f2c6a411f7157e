// Writes diagnostics as JSON, one object per line.
#include "compiler/diag/Consumers.h"
#include "runtime/base/Json.h"

namespace shardc {

namespace {

using Json = nlohmann::ordered_json;

Json placeJson(const SourceManager &sources, SourceLoc loc) {
  LineColumn place = sources.lineColumn(loc);
  return {{"line", place.line}, {"column", place.column}, {"offset", sources.offset(loc)}};
}

/// Adds file and range to `out`, unless the range is invalid.
void addPlace(Json &out, const SourceManager &sources, SourceRange range) {
  if (!range.isValid())
    return;
  out["file"] = sources.name(sources.bufferOf(range.begin)).str();
  out["range"] = {{"begin", placeJson(sources, range.begin)},
                  {"end", placeJson(sources, range.end)}};
}

llvm::StringRef kindName(FixItKind kind) {
  switch (kind) {
  case FixItKind::Applied:
    return "applied";
  case FixItKind::Recommended:
    return "recommended";
  case FixItKind::Alternative:
    return "alternative";
  }
  return "";
}

Json fixItJson(const SourceManager &sources, const FixIt &fix) {
  Json edits = Json::array();
  for (const TextEdit &edit : fix.edits) {
    Json out;
    addPlace(out, sources, edit.range);
    out["text"] = edit.text;
    edits.push_back(std::move(out));
  }
  return {{"kind", kindName(fix.kind).str()}, {"edits", std::move(edits)}};
}

Json messageJson(const SourceManager &sources, const Message &message) {
  Json out = {{"severity", severityName(message.severity).str()},
              {"id", message.id},
              {"text", message.text}};
  addPlace(out, sources, message.range);
  Json fixIts = Json::array();
  for (const FixIt &fix : message.fixIts)
    fixIts.push_back(fixItJson(sources, fix));
  out["fixits"] = std::move(fixIts);
  return out;
}

class JsonConsumer : public DiagConsumer {
public:
  JsonConsumer(const SourceManager &sources, llvm::raw_ostream &out, std::string recipe)
      : sources_(sources), out_(out), recipe_(std::move(recipe)) {}
  void handle(const Diagnostic &diagnostic) override {
    Json out = messageJson(sources_, diagnostic);
    if (!diagnostic.range.isValid() && !recipe_.empty())
      out["file"] = recipe_;
    if (!diagnostic.group.empty())
      out["group"] = diagnostic.group;
    Json notes = Json::array();
    for (const Message &note : diagnostic.notes)
      notes.push_back(messageJson(sources_, note));
    out["notes"] = std::move(notes);
    // Ill-formed bytes in paths and texts are replaced.
    out_ << toText(out, -1, /*isAscii=*/true) << '\n';
  }

private:
  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  std::string recipe_;
};

} // namespace

std::unique_ptr<DiagConsumer> makeJsonConsumer(const SourceManager &sources, llvm::raw_ostream &out,
                                               std::string recipe) {
  return std::make_unique<JsonConsumer>(sources, out, std::move(recipe));
}

} // namespace shardc
