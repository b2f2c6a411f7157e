// Conditions of Python whose value the text shows.
#pragma once

#include <functional>

#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

enum class Truth : uint8_t { No, Unknown, Yes };

inline Truth both(Truth a, Truth b) { return std::min(a, b); }
inline Truth negated(Truth a) {
  return static_cast<Truth>(static_cast<uint8_t>(Truth::Yes) - static_cast<uint8_t>(a));
}

/// Comparisons of literals, joined by `not`, `and`, `or`; anything else is unknown. `resolve` gives
/// the value of a name, or null.
Truth evaluateCondition(llvm::StringRef text, const std::function<TreePtr(const Tree &)> &resolve);

} // namespace shardc::upstream
