// How far a misspelt name is from one that exists, for "did you mean".
#pragma once

#include <string_view>

namespace shardc {

/// Number of insertions, deletions, replacements and swaps of
/// neighbours that turn `a` into `b`; more than `distanceMax` is
/// returned as `distanceMax + 1`. Upper and lower case, and `-` and
/// `_`, are equal.
unsigned editDistance(std::string_view a, std::string_view b, unsigned distanceMax);

/// The largest distance at which a name of so many bytes is taken for a misspelt one: a third of
/// its length, at least one edit and at most four.
unsigned misspeltDistanceMax(size_t nameBytes);

} // namespace shardc
