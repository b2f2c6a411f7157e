// What the readers of checkpoint files share: refusals, limits on what files may say, and names in
// messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

constexpr size_t kDimsMax = 64; ///< dimensions of a tensor
constexpr int64_t kExtentMax = int64_t{1}
                               << 48; ///< of a dimension, and bytes of an offset or a length

/// InvalidInput with that text.
template <typename... Args> Status invalid(fmt::format_string<Args...> text, Args &&...args) {
  return makeStatus(StatusCode::InvalidInput, text, std::forward<Args>(args)...);
}

/// Whether the text is one or more decimal digits and nothing else.
bool isNumber(std::string_view text);

/// The first 20 names, each on an indented line of its own, and how many more there are.
std::string listed(const std::vector<std::string> &names);

} // namespace shardc::checkpoint
