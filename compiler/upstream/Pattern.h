// Evaluates arithmetic: that of the shell, and that of Python's lists of integers, with which
// upstream describes kinds of layers: `([0]*3+[1]*58)`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// The list that the text stands for; nothing if it is no such list or longer than a hundred
/// thousand elements.
std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text);

/// Whole numbers with + - * / % and brackets, where `valueOf` says what a number or a name is;
/// nothing where it does not, or where C's arithmetic is undefined.
std::optional<int64_t>
evaluateShell(llvm::StringRef text,
              const std::function<std::optional<int64_t>(llvm::StringRef)> &valueOf);

} // namespace shardc::upstream
