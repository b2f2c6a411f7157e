// The only file that instantiates nlohmann's parser and printer.
#include "runtime/base/Json.h"

#include <algorithm>

template class nlohmann::basic_json<>;

namespace shardc {

namespace {

/// Copies and destructors of nlohmann's values recurse, so deeper values could exhaust the stack.
constexpr int kDepthMax = 1000;

/// Whether arrays and objects are nested more than kDepthMax deep. Brackets in strings do not
/// count.
bool isTooDeep(std::string_view text) {
  int depth = 0;
  bool inString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (inString && text[i] == '\\')
      ++i; // the escaped character
    else if (text[i] == '"')
      inString = !inString;
    else if (!inString && (text[i] == '[' || text[i] == '{') && ++depth > kDepthMax)
      return true;
    else if (!inString && (text[i] == ']' || text[i] == '}'))
      --depth;
  }
  return false;
}

} // namespace

nlohmann::json parseJson(std::string_view text, const nlohmann::json::parser_callback_t &watch) {
  if (isTooDeep(text) || text.find('\0') != text.npos) // the library ends at a NUL
    return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
}

nlohmann::json parsePythonJson(std::string_view text,
                               const nlohmann::json::parser_callback_t &watch) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string plain;
  bool inString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (inString && text[i] == '\\')
      plain += text[i++]; // the escaped character follows
    else if (text[i] == '"')
      inString = !inString;
    const auto *word = std::ranges::find_if(
        kWords, [&](std::string_view each) { return text.substr(i).starts_with(each); });
    if (inString || word == std::end(kWords)) {
      plain += text.substr(i, 1);
      continue;
    }
    plain += '"' + std::string(*word) + '"';
    i += word->size() - 1;
  }
  using Event = nlohmann::json::parse_event_t;
  return parseJson(plain, [&](int depth, Event event, nlohmann::json &parsed) {
    if (event == Event::object_end && parsed.size() == 1 && parsed.contains("__float__"))
      parsed = nlohmann::json(parsed["__float__"]);
    return !watch || watch(depth, event, parsed);
  });
}

std::string toText(const nlohmann::json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::json::error_handler_t::replace);
}

std::string toText(const nlohmann::ordered_json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace shardc
