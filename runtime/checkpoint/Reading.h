// What the readers of checkpoint files share: refusals, limits on what files may say, and names in
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
                               << 48; ///< of a dimension, and bytes of an offset or a length

/// InvalidInput with that text: of a file that is not as it was written.
template <typename... Args> Status damaged(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CheckpointDamaged.info(), fmt::format(text, std::forward<Args>(args)...));
}

/// The same for a kind of checkpoint that is not read here.
template <typename... Args> Status notSupported(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CheckpointNotSupported.info(),
                fmt::format(text, std::forward<Args>(args)...));
}

/// The same for contents without a counterpart in another format.
template <typename... Args> Status cannotConvert(fmt::format_string<Args...> text, Args &&...args) {
  return Status(report::CannotConvert.info(), fmt::format(text, std::forward<Args>(args)...));
}

/// Whether the text is one or more decimal digits and nothing else.
bool isNumber(std::string_view text);

/// The first 20 names, each on an indented line of its own, and how many more there are.
std::string listed(const std::vector<std::string> &names);

} // namespace shardc::checkpoint
