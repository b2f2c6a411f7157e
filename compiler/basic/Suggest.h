// "Did you mean": finds names similar to a misspelt one, by edit distance.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/EditDistance.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// The names that a misspelt name may mean.
struct Suggestion {
  std::vector<llvm::StringRef> names; ///< the most similar, all at `distance`, in the given order
  unsigned distance = 0;

  /// Whether there is a single name within two edits (one edit for names below five letters), which
  /// is certain enough for a fix-it.
  bool isSure() const { return sure; }
  /// The only possible name; empty if that is not certain.
  std::optional<llvm::StringRef> theOne() const {
    return sure ? std::optional<llvm::StringRef>(names.front()) : std::nullopt;
  }
  bool sure = false;
};

/// The most similar candidates within misspeltDistanceMax(). Duplicates count once. The list is
/// empty if no candidate is similar enough.
Suggestion suggest(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates);

/// Text `'a', 'b', 'c'` for messages. If there are more than `namesMax` names, it ends with `, ...
/// (12 more)`.
std::string quotedList(llvm::ArrayRef<llvm::StringRef> names, size_t namesMax = 12);

} // namespace shardc
