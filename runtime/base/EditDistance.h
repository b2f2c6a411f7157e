// Compares a misspelt name with existing names, for "did you mean".
#pragma once

#include <string_view>

namespace shardc {

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, or
/// `distanceMax + 1` if there are more than `distanceMax`. Case is ignored, and `-` equals `_`.
unsigned editDistance(std::string_view a, std::string_view b, unsigned distanceMax);

/// The largest distance at which a name of this many bytes counts as misspelt: a third of its
/// length, but from one to four edits.
unsigned misspeltDistanceMax(size_t nameBytes);

} // namespace shardc
