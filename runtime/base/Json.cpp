// The only file that instantiates nlohmann's parser and printer.
#include "runtime/base/Json.h"

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
  if (isTooDeep(text))
    return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
}

std::string toText(const nlohmann::json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::json::error_handler_t::replace);
}

std::string toText(const nlohmann::ordered_json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace shardc
