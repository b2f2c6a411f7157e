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
  std::vector<llvm::StringRef> names; ///< the nearest, all at `distance`, in the order given
  unsigned distance = 0;

  /// One candidate within two edits (one for names below five letters): enough for a fix-it.
  bool isSure() const { return sure; }
  /// The only name that can be meant, or nothing if that is not certain.
  std::optional<llvm::StringRef> theOne() const {
    return sure ? std::optional<llvm::StringRef>(names.front()) : std::nullopt;
  }
  bool sure = false;
};

/// Nearest candidates within misspeltDistanceMax().
/// Duplicates count once; the list is empty if no candidate is near enough.
Suggestion suggest(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates);

/// `'a', 'b', 'c'` for messages; more than `namesMax` end in `, ... (12 more)`.
std::string quotedList(llvm::ArrayRef<llvm::StringRef> names, size_t namesMax = 12);

} // namespace shardc
