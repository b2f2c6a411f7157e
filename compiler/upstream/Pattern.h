// Evaluates Python expressions for lists of integers, such as `([0]*3+[1]*58)`. Upstream describes
// the kinds of layers this way.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// Returns the list; empty if the text is not such an expression or the list has more than 100,000
/// elements.
std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text);

} // namespace shardc::upstream
