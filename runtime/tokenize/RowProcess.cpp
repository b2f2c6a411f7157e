#include "runtime/tokenize/RowProcess.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"

namespace shardc::tokenize {
namespace {

#define ASSET(name, text) text "\n"
constexpr const char *kRowScript =
#include "runtime/tokenize/EncodeRows.inc"
    ;
#undef ASSET

using Json = nlohmann::json;

/// Removes `count` numbers from the front of the payload. Returns false if there are fewer.
template <typename T> bool take(std::string_view &payload, size_t count, std::vector<T> &out) {
  if (payload.size() / sizeof(T) < count)
    return false;
  out.resize(count);
  if (count > 0)
    std::memcpy(out.data(), payload.data(), count * sizeof(T));
  payload.remove_prefix(count * sizeof(T));
  return true;
}

Json textOrNull(const std::string &text) { return text.empty() ? Json() : Json(text); }

} // namespace

/// The payload is: the number of rows, the length of each, the flags of each, all tokens (int32)
/// and all masks (uint8).
Status parseRows(std::string_view payload, int64_t vocabSize, Rows &out) {
  auto wrong = [](std::string_view what) {
    return makeStatus(StatusCode::Io, "the process that makes rows answers {}", what);
  };
  std::vector<uint32_t> count;
  if (!take(payload, 1, count) || !take(payload, count[0], out.lengths) ||
      !take(payload, count[0], out.flags))
    return wrong("without the lengths of its rows");
  uint64_t tokens = std::accumulate(out.lengths.begin(), out.lengths.end(), uint64_t{0});
  constexpr size_t kBytes = sizeof(int32_t) + 1; // bytes of a token and its mask
  if (payload.size() % kBytes != 0 || payload.size() / kBytes != tokens)
    return wrong("with another number of tokens than it announces");
  take(payload, tokens, out.tokens);
  take(payload, tokens, out.masks);
  for (int32_t token : out.tokens)
    if (token < 0 || token >= vocabSize)
      return makeStatus(report::DataRefused,
                        "a row has the token {}, outside of the vocabulary of {}", token,
                        vocabSize);
  for (uint8_t mask : out.masks)
    if (mask > 1)
      return wrong("with a mask that is neither 0 nor 1");
  return Status::ok();
}

/// Each note is a list of its kind, text, number of lines, and the first of these.
bool parseNotes(std::string_view payload, std::vector<RowNote> &out) {
  Json json = parseJson(payload);
  if (!json.is_array())
    return false;
  for (const Json &note : json) {
    if (!note.is_array() || note.size() != 4 || !note[0].is_string() || !note[1].is_string() ||
        !note[2].is_number_unsigned() || !note[3].is_number_unsigned())
      return false;
    out.push_back({note[0].get<std::string>(), note[1].get<std::string>(), note[2].get<int64_t>(),
                   note[3].get<size_t>()});
  }
  return true;
}

Status RowProcess::start(const std::string &python, const std::string &name,
                         const std::string &settings) {
  name_ = name;
  return process_.start(python, kRowScript, {settings});
}

/// All settings travel as one JSON argument; null means that the script uses its default.
Status RowProcess::startRows(const std::string &python, const std::string &tokenizer,
                             const RowSettings &settings) {
  Json json = {{"mode", "rows"},
               {"tokenizer", tokenizer},
               {"mask", settings.mask},
               {"overlong", settings.overlong},
               {"cut", settings.cut},
               {"template", textOrNull(settings.templateFile)},
               {"date", settings.date},
               {"end", textOrNull(settings.endToken)},
               {"prompt_key", textOrNull(settings.promptKey)},
               {"completion_key", textOrNull(settings.completionKey)},
               {"prompt_template", textOrNull(settings.promptTemplate)},
               {"separator", settings.separator ? Json(*settings.separator) : Json()},
               {"pairs", settings.isPairs},
               {"bos", settings.addBos},
               {"eos", settings.addEos},
               {"skip", settings.skipsRefused},
               {"length", settings.length}};
  return start(python, tokenizer, toText(json));
}

Status RowProcess::startTable(const std::string &python, const std::string &path) {
  return start(python, path, toText(Json{{"mode", "table"}, {"path", path}}));
}

Status RowProcess::startText(const std::string &python, const std::string &tokenizer) {
  return start(python, tokenizer, toText(Json{{"mode", "text"}, {"tokenizer", tokenizer}}));
}

Status RowProcess::startPrompts(const std::string &python, const std::string &tokenizer,
                                const std::string &templateFile, const std::string &date) {
  return start(python, tokenizer,
               toText(Json{{"mode", "text"},
                           {"tokenizer", tokenizer},
                           {"template", textOrNull(templateFile)},
                           {"date", textOrNull(date)},
                           {"end", Json()}}));
}

/// Reads the first answer, which comes when the script has loaded its tokenizer, or the reason why
/// it cannot.
Result<RowFacts> RowProcess::meet() {
  ASSIGN_OR_RETURN(char kind, process_.readAnswer(answer_));
  if (kind != 'H')
    return refuse(kind);
  Json json = parseJson(answer_);
  if (!json.is_object())
    return refuse('?');
  auto number = [&](const char *name) {
    auto found = json.find(name);
    bool is = found != json.end() && found->is_number_integer();
    return is ? std::optional(found->get<int64_t>()) : std::nullopt;
  };
  auto text = [&](const char *name) {
    auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  RowFacts facts;
  facts.library = text("library");
  facts.templateSha256 = text("template");
  facts.isMarked = json.value("marks", false);
  if (std::optional<int64_t> vocab = number("vocab")) {
    if (*vocab < 1 || *vocab > std::numeric_limits<int32_t>::max())
      return makeStatus(report::DataRefused, "the tokenizer '{}' has {} tokens", name_, *vocab);
    facts.vocabSize = vocabSize_ = *vocab;
  }
  for (auto [key, id] : {std::pair("begin", &facts.beginId), std::pair("end", &facts.endId)})
    if (std::optional<int64_t> token = number(key); token && *token >= 0 && *token < vocabSize_)
      *id = static_cast<int32_t>(*token);
  return facts;
}

Status RowProcess::send(std::span<const std::string_view> texts) { return process_.ask(texts); }

Status RowProcess::receive(Rows &out, std::optional<size_t> &refused) {
  refused.reset();
  ASSIGN_OR_RETURN(char kind, process_.readAnswer(answer_));
  out.notes.clear();
  if (kind == 'N') {
    if (!parseNotes(answer_, out.notes))
      return refuse('?');
    ASSIGN_OR_RETURN(kind, process_.readAnswer(answer_));
  }
  if (kind == 'T')
    return parseRows(answer_, vocabSize_, out);
  if (kind != 'R')
    return refuse(kind);
  Json json = parseJson(answer_);
  if (!json.is_object() || !json.contains("row") || !json["row"].is_number_unsigned() ||
      !json.contains("reason") || !json["reason"].is_string())
    return refuse('?');
  refused = json["row"].get<size_t>();
  return makeStatus(report::DataRefused, "{}", escapeControls(json["reason"].get<std::string>()));
}

Result<std::vector<std::string>> RowProcess::textsOf(std::span<const std::vector<int32_t>> lists) {
  std::vector<std::string> texts;
  for (const std::vector<int32_t> &list : lists)
    texts.push_back(toText(Json(list)));
  return answersTo(texts);
}

Result<std::vector<int32_t>> RowProcess::tokensOf(const Json &row, bool isChat) {
  std::string request = toText(Json{{"row", row}, {"chat", isChat}});
  ASSIGN_OR_RETURN(std::vector<std::string> answers, answersTo(std::span(&request, 1)));
  std::vector<int32_t> tokens;
  for (const Json &token : parseJson(answers[0])) {
    if (!token.is_number_integer() || token < 0 || token >= vocabSize_)
      return refuse('?');
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

/// Sends requests of which each has one text as its answer.
Result<std::vector<std::string>> RowProcess::answersTo(std::span<const std::string> requests) {
  std::vector<std::string_view> views(requests.begin(), requests.end());
  RETURN_IF_ERROR(send(views));
  ASSIGN_OR_RETURN(std::vector<std::string> out, readTexts());
  if (out.size() != requests.size())
    return refuse('?');
  return out;
}

Result<std::vector<std::string>> RowProcess::nextLines() {
  RETURN_IF_ERROR(send({}));
  return readTexts();
}

Result<std::vector<std::string>> RowProcess::readTexts() {
  ASSIGN_OR_RETURN(char kind, process_.readAnswer(answer_));
  if (kind != 'S')
    return refuse(kind);
  Json json = parseJson(answer_);
  std::vector<std::string> out;
  if (json.is_array())
    for (const Json &text : json)
      if (text.is_string())
        out.push_back(text.get<std::string>());
  return out;
}

} // namespace shardc::tokenize
