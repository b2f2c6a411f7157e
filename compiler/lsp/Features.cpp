#include "compiler/lsp/Features.h"

#include "compiler/basic/Library.h"
#include "compiler/config/Explain.h"
#include "compiler/diag/FixItApply.h"
#include "compiler/lsp/Context.h"
#include "compiler/parse/Format.h"
#include "runtime/base/Json.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"

namespace shardc::lsp {

namespace {

using Json = nlohmann::json;

int protocolSeverity(Severity severity) {
  switch (severity) {
  case Severity::Error:
    return 1;
  case Severity::Warning:
    return 2;
  case Severity::Remark:
    return 3;
  case Severity::Note:
    return 4;
  }
  return 1;
}

Json rangeJson(const Analysis &analysis, SourceRange range) {
  auto [begin, end] = analysis.positions(range);
  return toJson(begin, end);
}

Json locationJson(const Analysis &analysis, SourceRange range) {
  return {{"uri", analysis.uriOf(range)}, {"range", rangeJson(analysis, range)}};
}

/// The range for messages without a location in this document: the word `recipe`.
Json headRange(const Document &document) {
  size_t begin = document.text.find("recipe");
  begin = begin == std::string::npos ? 0 : begin;
  size_t end = std::min(document.text.size(), begin + 6);
  return toJson(document.positionOf(begin), document.positionOf(end));
}

/// A message about another file is shown at the head of this document, with its place as related
/// information. Notes without a place are appended to the text.
Json diagnosticJson(const Analysis &analysis, const Document &document, const Diagnostic &message) {
  Json out = {{"severity", protocolSeverity(message.severity)},
              {"source", "shardc"},
              {"code", message.id},
              {"message", message.text}};
  Json related = Json::array();
  bool isHere = analysis.isHere(message.range);
  out["range"] = isHere ? rangeJson(analysis, message.range) : headRange(document);
  if (!isHere && message.range.isValid())
    related.push_back(
        {{"location", locationJson(analysis, message.range)}, {"message", message.text}});
  for (const Message &note : message.notes) {
    if (note.range.isValid())
      related.push_back({{"location", locationJson(analysis, note.range)}, {"message", note.text}});
    else
      out["message"] = out["message"].get<std::string>() + "\n" + note.text;
  }
  if (!related.empty())
    out["relatedInformation"] = std::move(related);
  return out;
}

std::string quotedText(llvm::StringRef text) {
  return "'" + text.trim().take_until([](char c) { return c == '\n'; }).str() + "'";
}

std::string titleOf(const Analysis &analysis, const FixIt &fix) {
  const TextEdit &edit = fix.edits.front();
  std::string more = fix.edits.size() > 1 ? ", ..." : "";
  std::string before = quotedText(analysis.sources().text(edit.range));
  if (edit.text.empty())
    return "remove " + before + more;
  if (edit.range.sizeBytes() == 0)
    return "insert " + quotedText(edit.text) + more;
  return "replace " + before + " by " + quotedText(edit.text) + more;
}

/// The edits of `fix`, grouped by URI; empty if an edit has no location in a file.
std::optional<Json> changesOf(const Analysis &analysis, const FixIt &fix) {
  Json changes = Json::object();
  for (const TextEdit &edit : fix.edits) {
    if (!edit.range.isValid() ||
        !analysis.sources().isFile(analysis.sources().bufferOf(edit.range.begin)))
      return std::nullopt;
    changes[analysis.uriOf(edit.range)].push_back(
        {{"range", rangeJson(analysis, edit.range)}, {"newText", edit.text}});
  }
  return changes;
}

/// An edit that replaces the whole document by `text`.
Json wholeEdit(const Document &document, const std::string &text) {
  return {{"range", toJson({0, 0}, document.positionOf(document.text.size()))}, {"newText", text}};
}

void addActions(const Analysis &analysis, const Document &document, const Diagnostic &diagnostic,
                const Message &message, Json &out) {
  for (const FixIt &fix : message.fixIts) {
    std::optional<Json> changes = fix.edits.empty() ? std::nullopt : changesOf(analysis, fix);
    if (!changes)
      continue;
    const char *suffix = fix.kind == FixItKind::Recommended ? " (recommended)" : "";
    out.push_back({{"title", titleOf(analysis, fix) + suffix},
                   {"kind", "quickfix"},
                   {"isPreferred", fix.kind == FixItKind::Applied},
                   {"diagnostics", Json::array({diagnosticJson(analysis, document, diagnostic)})},
                   {"edit", {{"changes", *changes}}}});
  }
}

/// Adds one action that applies all edits of `shardc check --fix` to this document.
void addFixAll(const Analysis &analysis, const Document &document, Json &out) {
  FixItResult fixed = applyFixIts(analysis.sources(), analysis.messages(), /*recommended=*/false);
  auto found = fixed.texts.find(analysis.buffer());
  if (found == fixed.texts.end())
    return;
  Json changes = {{document.uri, Json::array({wholeEdit(document, found->second)})}};
  out.push_back({{"title", "apply all certain fixes"},
                 {"kind", "source.fixAll"},
                 {"edit", {{"changes", std::move(changes)}}}});
}

std::string uriOfBase(const Document &document, const Part &part) {
  llvm::SmallString<256> path;
  std::string base = filePathOf(llvm::StringRef(part.name).trim('"'));
  if (!llvm::sys::path::is_absolute(base))
    path = llvm::sys::path::parent_path(document.path);
  llvm::sys::path::append(path, base);
  return uriOfPath(path);
}

/// The range of the name of a part of the document.
Json nameRange(const Document &document, const Part &part) {
  return toJson(document.positionOf(part.nameBegin), document.positionOf(part.nameEnd));
}

Json placeJson(const Document &document, const Part &part) {
  return {{"uri", document.uri}, {"range", nameRange(document, part)}};
}

/// The options that an option's path or an alias refers to.
std::vector<config::Opt> optionsOf(llvm::StringRef path) {
  if (const config::AliasInfo *alias = config::findAlias(path))
    return alias->targets.vec();
  if (std::optional<config::Opt> opt = config::findOption(path))
    return {*opt};
  return {};
}

/// The location with the highest precedence, other than the item around `here`, that sets the
/// option.
SourceRange earlierPlace(const config::Setting &setting, SourceLoc here) {
  auto isElsewhere = [&](const config::Provenance &from) {
    return from.isWritten() && !(from.item.begin <= here && here <= from.item.end);
  };
  if (isElsewhere(setting.from))
    return setting.from.name;
  for (auto past = setting.history.rbegin(); past != setting.history.rend(); ++past)
    if (isElsewhere(past->second))
      return past->second.name;
  return setting.from.isWritten() ? setting.from.name : SourceRange();
}

} // namespace

Json toJson(Position position) {
  return {{"line", position.line}, {"character", position.character}};
}

Json toJson(Position begin, Position end) {
  return {{"start", toJson(begin)}, {"end", toJson(end)}};
}

Json toJson(const Completion &completion) {
  Json items = Json::array();
  for (const CompletionItem &item : completion.items) {
    Json out = {{"label", item.label},
                {"kind", static_cast<int>(item.kind)},
                {"textEdit",
                 {{"range", toJson(completion.begin, completion.end)}, {"newText", item.newText}}}};
    if (!item.detail.empty())
      out["detail"] = item.detail;
    if (!item.documentation.empty())
      out["documentation"] = item.documentation;
    items.push_back(std::move(out));
  }
  return {{"isIncomplete", false}, {"items", std::move(items)}};
}

Json diagnosticsJson(const Analysis &analysis, const Document &document) {
  Json out = Json::array();
  for (const Diagnostic &message : analysis.messages())
    if (message.severity != Severity::Remark)
      out.push_back(diagnosticJson(analysis, document, message));
  return out;
}

Json hoverJson(const Analysis &analysis, const Document &document, Position at) {
  size_t offset = document.offsetOf(at);
  auto [begin, end] = wordAt(document.text, offset);
  llvm::StringRef word = llvm::StringRef(document.text).slice(begin, end);
  std::string text;
  std::optional<std::string> path = optionPathAt(document.text, offset);
  for (config::Opt opt : path ? optionsOf(*path) : std::vector<config::Opt>())
    text += analysis.config() ? config::explainOption(*analysis.config(), analysis.sources(),
                                                      config::info(opt).path)
                              : config::explainOption(config::info(opt).path);
  bool isOption = !text.empty();
  std::optional<config::Section> section = config::findSection(word);
  if (section && !isOption)
    text = word.str() + ": " + config::info(*section).doc.str() + "\n";
  if (text.empty())
    return nullptr;
  return {{"contents", {{"kind", "markdown"}, {"value", "```text\n" + text + "```"}}},
          {"range", toJson(document.positionOf(begin), document.positionOf(end))}};
}

Json referencesJson(const Analysis &analysis, const Document &document, Position at) {
  Json out = Json::array();
  size_t offset = document.offsetOf(at);
  for (const Part &place : constantPlaces(document.text, offset))
    out.push_back(placeJson(document, place));
  std::optional<std::string> path = optionPathAt(document.text, offset);
  if (!out.empty() || !path || !analysis.config())
    return out;
  for (config::Opt opt : optionsOf(*path)) {
    const config::Setting &setting = (*analysis.config())[opt];
    auto add = [&](const config::Provenance &from) {
      if (from.isWritten() && from.name.isValid() &&
          analysis.sources().isFile(analysis.sources().bufferOf(from.name.begin)))
        out.push_back(locationJson(analysis, from.name));
    };
    for (const auto &past : setting.history)
      add(past.second);
    add(setting.from);
  }
  return out;
}

Json renameRangeJson(const Document &document, Position at) {
  size_t offset = document.offsetOf(at);
  for (const Part &place : constantPlaces(document.text, offset))
    if (place.isAt(offset))
      return nameRange(document, place);
  return nullptr;
}

Json renameJson(const Document &document, Position at, const std::string &name) {
  bool isName = !name.empty() && !llvm::isDigit(name[0]) && name != "let" &&
                llvm::all_of(name, [](char c) { return llvm::isAlnum(c) || c == '_'; }) &&
                llvm::none_of(partsOf(document.text), [&](const Part &part) {
                  return part.kind == Part::Kind::Constant && part.name == name;
                });
  Json edits = Json::array();
  if (isName)
    for (const Part &place : constantPlaces(document.text, document.offsetOf(at)))
      edits.push_back({{"range", nameRange(document, place)}, {"newText", name}});
  if (edits.empty())
    return nullptr;
  return {{"changes", {{document.uri, std::move(edits)}}}};
}

Json symbolsJson(const Document &document) {
  constexpr int kSymbolKinds[] = {0, 2, 7, 14, 0}; // of the protocol; by Part::Kind, 0 for none
  Json out = Json::array();
  for (const Part &part : partsOf(document.text)) {
    const int kind = kSymbolKinds[static_cast<int>(part.kind)];
    if (kind == 0)
      continue;
    Position begin = document.positionOf(part.nameBegin), end = document.positionOf(part.end);
    Json symbol = {{"name", part.name},
                   {"kind", kind},
                   {"range", toJson(begin, end)},
                   {"selectionRange", nameRange(document, part)}};
    if (part.kind == Part::Kind::Section)
      symbol["children"] = Json::array();
    bool isChild = part.isInSection && !out.empty() && out.back().contains("children");
    (isChild ? out.back()["children"] : out).push_back(std::move(symbol));
  }
  return out;
}

Json linksJson(const Document &document) {
  Json out = Json::array();
  for (const Part &part : partsOf(document.text))
    if (part.kind == Part::Kind::Base)
      out.push_back({{"range", nameRange(document, part)}, {"target", uriOfBase(document, part)}});
  return out;
}

Json definitionJson(const Analysis &analysis, const Document &document, Position at) {
  size_t offset = document.offsetOf(at);
  for (const Part &part : partsOf(document.text))
    if (part.kind == Part::Kind::Base && part.isAt(offset))
      return {{"uri", uriOfBase(document, part)}, {"range", toJson({0, 0}, {0, 0})}};
  if (auto places = constantPlaces(document.text, offset); !places.empty())
    return placeJson(document, places.front());
  std::optional<std::string> path = optionPathAt(document.text, offset);
  if (!path || !analysis.config())
    return nullptr;
  SourceLoc here = analysis.sources().loc(analysis.buffer(), offset);
  for (config::Opt opt : optionsOf(*path))
    if (SourceRange place = earlierPlace((*analysis.config())[opt], here); place.isValid())
      return locationJson(analysis, place);
  return nullptr;
}

Json codeActionsJson(const Analysis &analysis, const Document &document, Position begin,
                     Position end) {
  Json out = Json::array();
  size_t first = document.offsetOf(begin), last = document.offsetOf(end);
  for (const Diagnostic &message : analysis.messages()) {
    if (!analysis.isHere(message.range) || analysis.sources().offset(message.range.begin) > last ||
        analysis.sources().offset(message.range.end) < first)
      continue;
    addActions(analysis, document, message, message, out);
    for (const Message &note : message.notes)
      addActions(analysis, document, message, note, out);
  }
  addFixAll(analysis, document, out);
  return out;
}

Json formattingJson(const Document &document) {
  SourceManager sources;
  DiagEngine diags(sources);
  BufferId buffer = sources.addBuffer(document.path, document.text);
  std::optional<std::string> text = formatRecipe(buffer, diags);
  if (!text)
    return nullptr;
  return *text == document.text ? Json::array() : Json::array({wholeEdit(document, *text)});
}

} // namespace shardc::lsp
