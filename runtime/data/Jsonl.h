// JSON lines as a source of text: one object a line, the text under one key.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Puts the text under `key` of the object in `line` into `texts`: one string, or the strings of a
/// list (sentences). The last of equal keys counts. Without building a tree, so memory is bounded
/// by the line. InvalidInput, without place, for malformed lines, a missing key, other types and
/// text that is not UTF-8.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts);

/// Calls `visit` for each line of the file that is not blank, without its end, and adds
/// "path:line: " to its failures. InvalidInput for lines of more than `lineBytesMax` bytes.
Status forEachLine(const std::string &path, uint64_t lineBytesMax,
                   const std::function<Status(std::string_view)> &visit);

} // namespace shardc::data
