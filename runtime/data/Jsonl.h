// JSON lines as a source of text: each line is an object with the text under one key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// The default limit for the bytes of a line.
inline constexpr uint64_t kLineBytesMax = uint64_t{1} << 27;

/// Copies the text under `key` of the object in `line` to `texts`: one string, or the strings of a
/// list (sentences). If the key occurs twice, the last one counts. Only this value is kept, so
/// memory use is bounded by the line. InvalidInput, without a location, for a malformed line, a
/// missing key, values of other types, and text that is not UTF-8.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts);

} // namespace shardc::data
