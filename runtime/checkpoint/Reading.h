// Shared by readers of checkpoint files: errors, limits on the contents of files, and names in
// messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Reports.h"

namespace shardc::checkpoint {

constexpr size_t kDimsMax = 64; ///< dimensions of a tensor
constexpr int64_t kExtentMax = int64_t{1}
                               << 48; ///< extent of a dimension, and bytes of an offset or length

/// CheckpointDamaged with this text, for a file whose contents have changed or are malformed.
template <typename... Args> Status damaged(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CheckpointDamaged.info(), fmt::format(text, std::forward<Args>(args)...));
}

/// CheckpointNotSupported with this text, for a kind of checkpoint that cannot be read.
template <typename... Args> Status notSupported(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CheckpointNotSupported.info(),
                fmt::format(text, std::forward<Args>(args)...));
}

/// CannotConvert with this text, for contents that have no counterpart in another format.
template <typename... Args> Status cannotConvert(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CannotConvert.info(), fmt::format(text, std::forward<Args>(args)...));
}

/// Whether the text is one or more decimal digits and nothing else.
bool isNumber(std::string_view text);

/// The first 20 names, one per indented line, and the number of further names.
std::string listed(const std::vector<std::string> &names);

} // namespace shardc::checkpoint
