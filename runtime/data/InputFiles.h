// Expands the text inputs that a user specifies (files, folders, patterns) into files in a fixed
// order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Maximum number of files in one list of inputs.
inline constexpr size_t kInputFilesMax = 1'000'000;

/// Whether files compressed by gzip or zstd, according to their suffix, are accepted.
enum class PackedInputs : uint8_t { Refused, Taken };

/// Returns the regular files of `inputs`, input by input. A folder stands for all files below it
/// whose names do not begin with a dot; links to folders are not followed. `*`, `?` and `[...]`
/// make a name a pattern if no such file exists. Files of one input are sorted by the bytes of
/// their paths. NotFound if an input matches nothing; InvalidInput for compressed files and the
/// files of an indexed dataset.
Result<std::vector<std::string>> expandInputs(std::span<const std::string> inputs,
                                              PackedInputs packed = PackedInputs::Refused);

} // namespace shardc::data
