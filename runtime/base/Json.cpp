// The only file that instantiates nlohmann's parser and printer.
#include "runtime/base/Json.h"

template class nlohmann::basic_json<>;

namespace shardc {

nlohmann::json parseJson(std::string_view text, const nlohmann::json::parser_callback_t &watch) {
  return nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
}

std::string toText(const nlohmann::json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::json::error_handler_t::replace);
}

std::string toText(const nlohmann::ordered_json &json, int indent, bool isAscii) {
  return json.dump(indent, ' ', isAscii, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace shardc
