// JSON lines as a source of text: one object per line, with the text under one key.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Copies the text under `key` of the object in `line` to `texts`: one string, or the strings of a
/// list (sentences). If a key occurs twice, the last one counts. No tree is built, so memory is
/// bounded by the line. InvalidInput, without a location, for malformed lines, a missing key, other
/// types and text that is not UTF-8.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts);

/// Calls `visit` for each line of the file that is not blank, without its line end, and adds
/// "path:line: " to its errors. InvalidInput for lines of more than `lineBytesMax` bytes.
Status forEachLine(const std::string &path, uint64_t lineBytesMax,
                   const std::function<Status(std::string_view)> &visit);

} // namespace shardc::data
