// "Did you mean": names near a misspelt one, by edit distance.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// Number of insertions, deletions, replacements and swaps of neighbours that make `a` into `b`;
/// anything above `distanceMax` is reported as `distanceMax + 1`. Letters of either case, and `-`
/// and
/// `_`, count as equal.
unsigned editDistance(llvm::StringRef a, llvm::StringRef b, unsigned distanceMax);

/// The answer to "which of these names was meant".
struct Suggestion {
  std::vector<llvm::StringRef> names; ///< the nearest, all at `distance`, in the order given
  unsigned distance = 0;

  /// One candidate within two edits (one for names below five letters): sure enough for a fix-it.
  bool isSure() const { return sure; }
  /// The one name that was meant, if sure.
  std::optional<llvm::StringRef> theOne() const {
    return sure ? std::optional<llvm::StringRef>(names.front()) : std::nullopt;
  }
  bool sure = false;
};

/// Nearest candidates within a third of the name's length (at least one edit, at most four).
/// Duplicates count once; no candidate near enough gives an empty list.
Suggestion suggest(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates);

/// `'a', 'b', 'c'` for messages; more than `namesMax` end in `, ... (12 more)`.
std::string quotedList(llvm::ArrayRef<llvm::StringRef> names, size_t namesMax = 12);

} // namespace shardc
