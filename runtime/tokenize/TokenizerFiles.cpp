#include "runtime/tokenize/TokenizerFiles.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Sha256.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/data/DataFile.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kSettingsBytesMax = 64 << 20;

/// Returns the JSON object in a settings file; an empty object if there is no such file.
Result<Json> readSettings(const UntrustedFolder &folder, const char *name) {
  if (!folder.has(name))
    return Json(Json::object());
  ASSIGN_OR_RETURN(std::string text, folder.read(name, kSettingsBytesMax));
  Json json = parseJson(text);
  if (!json.is_object())
    return makeStatus(report::DataRefused, "'{}/{}' is not a JSON object", folder.path(), name);
  return json;
}

/// Checks the files that Python's readers look for by themselves in the tokenizer's folder.
Status checkOthers(const UntrustedFolder &folder) {
  std::vector<std::string> names = {"chat_template.jinja", "chat_template.json",
                                    "generation_config.json", "config.json", "added_tokens.json"};
  const std::string inner = "additional_chat_templates";
  if (folder.has(inner)) {
    ASSIGN_OR_RETURN(std::vector<std::string> templates, folder.listBelow(0, inner));
    names.insert(names.end(), templates.begin(), templates.end());
  }
  for (const std::string &name : names)
    if (folder.has(name)) {
      ASSIGN_OR_RETURN(uint64_t size, folder.sizeOf(name));
      if (size > kSettingsBytesMax)
        return makeStatus(report::DataRefused, "'{}/{}' has {} bytes; the limit is {}",
                          folder.path(), name, size, kSettingsBytesMax);
    }
  return Status::ok();
}

/// Returns `eos_token`, which is a text or an object with the text under `content`.
std::string endTokenIn(const Json &settings) {
  auto found = settings.find("eos_token");
  if (found == settings.end())
    return "";
  const Json *value = &*found;
  if (value->is_object() && value->contains("content"))
    value = &value->at("content");
  return value->is_string() ? value->get<std::string>() : "";
}

/// The largest id among added tokens; -1 if there are none. Keys are the ids as texts.
int64_t addedIdMaxIn(const Json &settings) {
  int64_t most = -1;
  auto found = settings.find("added_tokens_decoder");
  if (found == settings.end() || !found->is_object())
    return most;
  for (const auto &item : found->items()) {
    int64_t id = -1;
    std::from_chars(item.key().data(), item.key().data() + item.key().size(), id);
    most = std::max(most, id);
  }
  return most;
}

} // namespace

Result<std::string> readWhole(const std::string &path) {
  constexpr uint64_t kBytesMax = uint64_t{1} << 30;
  ASSIGN_OR_RETURN(data::DataFile file, data::DataFile::open(path));
  if (file.size() > kBytesMax)
    return makeStatus(report::DataRefused, "'{}' has {} bytes; the limit is {}", path, file.size(),
                      kBytesMax);
  std::string bytes(file.size(), '\0');
  RETURN_IF_ERROR(file.readAt(0, {reinterpret_cast<uint8_t *>(bytes.data()), bytes.size()}));
  return bytes;
}

/// The ids of all tokens that end a text, for generation: the tokenizer's own and those in
/// generation_config.json and config.json, where `eos_token_id` is a number or a list. Files that
/// are missing or damaged add none.
std::vector<int32_t> endsOfTexts(const std::string &folder, std::optional<int32_t> ofTokenizer) {
  std::vector<int32_t> ends;
  if (ofTokenizer)
    ends.push_back(*ofTokenizer);
  constexpr uint64_t kBytesMax = 16 << 20;
  for (const char *file : {"generation_config.json", "config.json"}) {
    Result<std::string> text = folder.empty() ? Result<std::string>(std::string("{}"))
                                              : UntrustedFolder::readIn(folder, file, kBytesMax);
    nlohmann::json said = text.isOk() ? parseJson(*text) : nlohmann::json();
    if (!said.is_object() || !said.contains("eos_token_id"))
      continue;
    const nlohmann::json &found = said["eos_token_id"];
    for (const nlohmann::json &each : found.is_array() ? found : nlohmann::json::array({found}))
      if (each.is_number_integer())
        ends.push_back(each.get<int32_t>());
  }
  return ends;
}

Result<std::string> digestOf(const std::string &path) {
  ASSIGN_OR_RETURN(data::DataFile file, data::DataFile::open(path));
  Sha256 digest;
  std::string chunk;
  for (uint64_t at = 0; at < file.size(); at += chunk.size()) {
    chunk.resize(std::min(uint64_t{1} << 20, file.size() - at));
    RETURN_IF_ERROR(file.readAt(at, {reinterpret_cast<uint8_t *>(chunk.data()), chunk.size()}));
    digest.add(chunk);
  }
  return digest.hex();
}

/// Prefers tokenizer.json, since it includes added tokens. The end token is taken from
/// tokenizer_config.json, or else from special_tokens_map.json.
Result<TokenizerFiles> findTokenizer(const std::string &path) {
  TokenizerFiles files;
  std::error_code ignored;
  fs::path file = path;
  if (fs::is_directory(path, ignored)) {
    ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(path));
    const char *name = in.has("tokenizer.json") ? "tokenizer.json" : "tokenizer.model";
    if (!in.has(name))
      return makeStatus(report::DataNotFound,
                        "the folder '{}' has neither a tokenizer.json nor a tokenizer.model", path);
    RETURN_IF_ERROR(in.sizeOf(name).status()); // refuses a link that leads elsewhere
    file = fs::path(path) / name;
  } else if (!fs::exists(file, ignored)) {
    return makeStatus(report::DataNotFound, "there is no tokenizer '{}'", path);
  } else if (file.extension() != ".json" && file.extension() != ".model") {
    return makeStatus(report::DataRefused,
                      "'{}' is no tokenizer: needed is a folder, a tokenizer.json or a "
                      "tokenizer.model",
                      path);
  }
  files.kind =
      file.extension() == ".json" ? TokenizerKind::HuggingFace : TokenizerKind::SentencePiece;
  files.path = file.string();
  ASSIGN_OR_RETURN(std::string contents, readWhole(files.path));
  Sha256 digest;
  digest.add(contents);
  files.sha256 = digest.hex();
  std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(folder));
  RETURN_IF_ERROR(checkOthers(in));
  ASSIGN_OR_RETURN(Json config, readSettings(in, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(Json map, readSettings(in, "special_tokens_map.json"));
  files.endToken = endTokenIn(config);
  if (files.endToken.empty())
    files.endToken = endTokenIn(map);
  files.addedIdMax = addedIdMaxIn(config);
  return files;
}

} // namespace shardc::tokenize
