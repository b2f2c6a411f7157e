// JSON values, by nlohmann's library. Parsing and printing are large templates: Json.cpp
// instantiates them once, and other files call the functions below. Ordered values are only built
// and printed, so the few functions that do this are instantiated where they are used.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<>;

namespace shardc {

/// The value of `text`; `is_discarded()` where it is malformed. `watch` sees each part of it, and
/// drops it by returning false.
nlohmann::json parseJson(std::string_view text,
                         const nlohmann::json::parser_callback_t &watch = nullptr);

/// `json` as text: in one line, or with `indent` blanks a level. What is not UTF-8 is replaced;
/// `isAscii` escapes the rest.
std::string toText(const nlohmann::json &json, int indent = -1, bool isAscii = false);
std::string toText(const nlohmann::ordered_json &json, int indent = -1, bool isAscii = false);

} // namespace shardc
