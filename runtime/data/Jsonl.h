// JSON lines as a source of text: each line is an object with the text under one key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// The default limit for the bytes of a line.
inline constexpr uint64_t kLineBytesMax = uint64_t{1} << 27;

/// Copies the text under `key` of the object in `line` to `texts`: one string, or the strings of a
/// list (sentences). If the key occurs twice, the last one counts. No tree is built, so memory use
/// is bounded by the line. InvalidInput, without a location, for a malformed line, a missing key,
/// values of other types, and text that is not UTF-8.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts);

/// Calls `visit` for each non-blank line of the file, without the line end, and prepends
/// "path:line: " to the errors of `visit`. InvalidInput for a line of more than `lineBytesMax`
/// bytes.
Status forEachLine(const std::string &path, uint64_t lineBytesMax,
                   const std::function<Status(std::string_view)> &visit);

} // namespace shardc::data
