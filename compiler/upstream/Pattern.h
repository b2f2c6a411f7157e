// Evaluates Python's lists of integers, with which upstream describes kinds of layers:
// `([0]*3+[1]*58)`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// The list that the text stands for; nothing if it is no such list or longer than a hundred
/// thousand elements.
std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text);

} // namespace shardc::upstream
