// Expands the text inputs of a user (files, folders, patterns) into files in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Maximum number of files of one list of inputs.
inline constexpr size_t kInputFilesMax = 1'000'000;

/// Whether files with the suffix of gzip or zstd are accepted.
enum class PackedInputs : uint8_t { Refused, Taken };

/// The regular files of `inputs`, input by input. A folder means all files below it whose names do
/// not begin with a dot; links to folders are not followed. `*`, `?` and `[...]` in a name that
/// does not exist make it a pattern. Files of one input are sorted by the bytes of their paths.
/// NotFound if an input matches nothing; InvalidInput for compressed files and the files of an
/// indexed dataset.
Result<std::vector<std::string>> expandInputs(std::span<const std::string> inputs,
                                              PackedInputs packed = PackedInputs::Refused);

} // namespace shardc::data
