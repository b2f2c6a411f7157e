// JSON values of nlohmann's library. Parsing and printing are large templates, so only Json.cpp
// instantiates them, and other files call the functions below. Ordered values are only built and
// printed; the few functions for them are instantiated where they are used.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<>;

namespace shardc {

/// Parses `text`. The result satisfies `is_discarded()` if the text is malformed, or nested more
/// than 1,000 deep. `watch` is called with each part and may return false to drop it.
nlohmann::json parseJson(std::string_view text,
                         const nlohmann::json::parser_callback_t &watch = nullptr);

/// Like parseJson, for what Python's module json writes: Infinity, -Infinity and NaN become texts,
/// also as `{"__float__": "Infinity"}`, which transformers writes.
nlohmann::json parsePythonJson(std::string_view text,
                               const nlohmann::json::parser_callback_t &watch = nullptr);

/// Prints `json` on one line, or with `indent` blanks per level. Bytes that are not UTF-8 are
/// replaced; `isAscii` escapes all characters beyond ASCII.
std::string toText(const nlohmann::json &json, int indent = -1, bool isAscii = false);
std::string toText(const nlohmann::ordered_json &json, int indent = -1, bool isAscii = false);

} // namespace shardc
