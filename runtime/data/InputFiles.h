// Turns what a user names as text (files, folders, patterns) into a list of files in a fixed order.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Files that one list of inputs may name.
inline constexpr size_t kInputFilesMax = 1'000'000;

/// The regular files behind `inputs`, input by input. A folder stands for all files below it whose
/// names do not begin with a dot, links to folders not followed; `*`, `?` and `[...]` in a name
/// that does not exist make it a pattern. Files of one input are sorted by the bytes of their
/// paths. NotFound if an input names nothing; InvalidInput for compressed files
/// and the files of an indexed dataset.
Result<std::vector<std::string>> expandInputs(std::span<const std::string> inputs);

} // namespace shardc::data
