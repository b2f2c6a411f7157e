#include "compiler/lsp/Server.h"

#include "compiler/lsp/Features.h"
#include "runtime/base/Json.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc::lsp {

namespace {

using Json = nlohmann::json;

// Error codes of JSON-RPC and of the protocol.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kMethodNotFound = -32601;
constexpr int kInvalidParams = -32602;
constexpr int kNotInitialized = -32002;

/// Maximum nesting of a message. Replies contain parts of the message, and writing JSON is
/// recursive.
constexpr int kDepthMax = 256;

Json capabilities() {
  Json completion = {{"triggerCharacters", Json::array({".", "=", " ", "{", "\"", "/"})}};
  Json actions = {{"codeActionKinds", Json::array({"quickfix", "source.fixAll"})}};
  Json sync = {{"openClose", true}, {"change", 2}, {"save", true}};
  return {{"positionEncoding", "utf-16"},
          {"textDocumentSync", std::move(sync)},
          {"completionProvider", completion},
          {"hoverProvider", true},
          {"definitionProvider", true},
          {"codeActionProvider", actions},
          {"documentFormattingProvider", true},
          {"referencesProvider", true},
          {"renameProvider", {{"prepareProvider", true}}},
          {"documentSymbolProvider", true},
          {"documentLinkProvider", {{"resolveProvider", false}}}};
}

/// The member `key` of an object; null if there is no such member or `json` is not an object.
const Json &at(const Json &json, const char *key) {
  static const Json kNull;
  if (!json.is_object())
    return kNull;
  auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

std::string text(const Json &json) { return json.is_string() ? json.get<std::string>() : ""; }

uint32_t number(const Json &json) {
  return json.is_number_unsigned()
             ? static_cast<uint32_t>(std::min<uint64_t>(json.get<uint64_t>(), UINT32_MAX))
             : 0;
}

Position position(const Json &json) {
  return {number(at(json, "line")), number(at(json, "character"))};
}

Position place(const Json &params) { return position(at(params, "position")); }

/// What the server answers for a document.
struct Feature {
  llvm::StringLiteral method; ///< without `textDocument/`
  Json (*answer)(const Analysis &, const Document &, const Json &params);
};
constexpr Feature kFeatures[] = {
    {"completion", [](auto &, auto &document,
                      auto &params) { return toJson(complete(document, place(params))); }},
    {"hover", [](auto &analysis, auto &document,
                 auto &params) { return hoverJson(analysis, document, place(params)); }},
    {"definition", [](auto &analysis, auto &document,
                      auto &params) { return definitionJson(analysis, document, place(params)); }},
    {"references", [](auto &analysis, auto &document,
                      auto &params) { return referencesJson(analysis, document, place(params)); }},
    {"prepareRename",
     [](auto &, auto &document, auto &params) { return renameRangeJson(document, place(params)); }},
    {"rename",
     [](auto &, auto &document, auto &params) {
       return renameJson(document, place(params), text(at(params, "newName")));
     }},
    {"documentSymbol", [](auto &, auto &document, auto &) { return symbolsJson(document); }},
    {"documentLink", [](auto &, auto &document, auto &) { return linksJson(document); }},
    {"formatting", [](auto &, auto &document, auto &) { return formattingJson(document); }},
    {"codeAction",
     [](auto &analysis, auto &document, auto &params) {
       const Json &range = at(params, "range");
       return codeActionsJson(analysis, document, position(at(range, "start")),
                              position(at(range, "end")));
     }},
};

std::string pathIn(const Json &params) {
  return pathOfUri(text(at(at(params, "textDocument"), "uri")));
}

} // namespace

bool Server::run() {
  while (!isBroken_) {
    Result<std::optional<std::string>> message = transport_.read();
    if (!message.isOk()) {
      fail(nullptr, kParseError, std::string(message.status().message()));
      return false;
    }
    if (!*message || !handle(**message))
      break;
  }
  return isShutDown_;
}

/// Handles one JSON-RPC message. Returns false when the server must end. The nesting of JSON is
/// limited, since the parser is recursive.
bool Server::handle(const std::string &text) {
  bool isTooDeep = false;
  auto watch = [&](int depth, Json::parse_event_t, Json &) {
    isTooDeep |= depth > kDepthMax;
    return !isTooDeep; // does not store values that are nested too deeply
  };
  Json message = parseJson(text, watch);
  if (isTooDeep) {
    fail(nullptr, kInvalidRequest,
         "the message is nested more than " + std::to_string(kDepthMax) + " deep");
    return true;
  }
  if (message.is_discarded()) {
    fail(nullptr, kParseError, "the message is not JSON");
    return true;
  }
  std::string method = lsp::text(at(message, "method"));
  const Json &params = at(message, "params");
  bool isRequest = message.is_object() && message.contains("id");
  if (method.empty()) {
    if (!isRequest || !message.contains("result")) // ignores replies: the server sends no requests
      fail(at(message, "id"), kInvalidRequest, "the message has no method");
    return true;
  }
  if (method == "exit")
    return false;
  if (isRequest)
    request(message, method, params);
  else
    notify(method, params);
  return !isBroken_;
}

/// The order of requests is checked first: 'initialize' begins, and nothing follows 'shutdown'.
void Server::request(const Json &message, const std::string &method, const Json &params) {
  const Json &id = at(message, "id");
  if (isShutDown_)
    return fail(id, kInvalidRequest, "the server is shut down");
  if (method == "initialize") {
    isInitialized_ = true;
    return reply(id, {{"capabilities", capabilities()}, {"serverInfo", {{"name", "shardc"}}}});
  }
  if (!isInitialized_)
    return fail(id, kNotInitialized, "the first request must be 'initialize'");
  if (method == "shutdown") {
    isShutDown_ = true;
    return reply(id, nullptr);
  }
  const Feature *feature = llvm::find_if(kFeatures, [&](const Feature &each) {
    return "textDocument/" + each.method.str() == method;
  });
  if (feature == std::end(kFeatures))
    return fail(id, kMethodNotFound, "'" + method + "' is not known");
  auto found = documents_.find(pathIn(params));
  if (found == documents_.end())
    return fail(id, kInvalidParams, "the document is not open");
  const Document &document = found->second;
  reply(id, feature->answer(*analyses_.at(document.path), document, params));
}

void Server::notify(const std::string &method, const Json &params) {
  if (!isInitialized_ || isShutDown_)
    return; // as the protocol requires
  if (method == "textDocument/didOpen")
    open(params);
  else if (method == "textDocument/didChange")
    change(params);
  else if (method == "textDocument/didSave")
    analyse(pathIn(params));
  else if (method == "textDocument/didClose")
    close(params);
}

void Server::open(const Json &params) {
  const Json &item = at(params, "textDocument");
  Document document;
  document.uri = text(at(item, "uri"));
  document.path = pathOfUri(document.uri);
  document.text = text(at(item, "text"));
  document.version = number(at(item, "version"));
  std::string path = document.path;
  documents_[path] = std::move(document);
  analyse(path);
}

void Server::change(const Json &params) {
  auto found = documents_.find(pathIn(params));
  if (found == documents_.end())
    return;
  Document &document = found->second;
  document.version = number(at(at(params, "textDocument"), "version"));
  const Json &changes = at(params, "contentChanges");
  for (const Json &change : changes.is_array() ? changes : Json::array()) {
    const Json &range = at(change, "range");
    if (range.is_object())
      document.replace(position(at(range, "start")), position(at(range, "end")),
                       text(at(change, "text")));
    else
      document.text = text(at(change, "text"));
  }
  analyse(document.path);
}

void Server::close(const Json &params) {
  auto found = documents_.find(pathIn(params));
  if (found == documents_.end())
    return;
  publish(found->second, Json::array());
  std::string path = found->first;
  documents_.erase(found);
  analyses_.erase(path);
  analyseDerived(path);
}

void Server::analyse(const std::string &path) {
  auto changed = documents_.find(path);
  if (changed == documents_.end())
    return;
  analyseAlone(changed->second);
  analyseDerived(path);
}

void Server::analyseAlone(const Document &document) {
  auto analysis = std::make_unique<Analysis>(document, documents_, further_, measure_);
  publish(document, diagnosticsJson(*analysis, document));
  analyses_[document.path] = std::move(analysis);
}

void Server::analyseDerived(const std::string &path) {
  for (const auto &[other, document] : documents_)
    if (other != path && document.text.find("extends") != std::string::npos)
      analyseAlone(document);
}

void Server::publish(const Document &document, const Json &diagnostics) {
  send({{"jsonrpc", "2.0"},
        {"method", "textDocument/publishDiagnostics"},
        {"params",
         {{"uri", document.uri}, {"version", document.version}, {"diagnostics", diagnostics}}}});
}

void Server::reply(const Json &id, const Json &result) {
  send({{"jsonrpc", "2.0"}, {"id", id}, {"result", result}});
}

void Server::fail(const Json &id, int code, const std::string &why) {
  send({{"jsonrpc", "2.0"}, {"id", id}, {"error", {{"code", code}, {"message", why}}}});
}

void Server::send(const Json &message) {
  Status sent = transport_.write(toText(message));
  isBroken_ |= !sent.isOk();
}

} // namespace shardc::lsp
