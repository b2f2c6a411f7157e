// The optimal string alignment distance: insertions, deletions, replacements and swaps of
// neighbours cost 1. Upper and lower case count as equal.
#include "runtime/base/EditDistance.h"

#include <algorithm>
#include <vector>

namespace shardc {
namespace {

char folded(char c) {
  return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

} // namespace

/// Returns `distanceMax + 1` for all larger distances, and stops at the first row of the table
/// whose entries are all larger.
unsigned editDistance(std::string_view a, std::string_view b, unsigned distanceMax) {
  size_t difference = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (difference > distanceMax)
    return distanceMax + 1;
  // Keeps three rows of the usual table, since a swap of neighbours refers to the row before the
  // previous one.
  size_t width = b.size() + 1;
  std::vector<unsigned> before(width), last(width), row(width);
  for (size_t j = 0; j < width; ++j)
    row[j] = static_cast<unsigned>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<unsigned>(i);
    unsigned rowMin = row[0];
    for (size_t j = 1; j < width; ++j) {
      char x = folded(a[i - 1]), y = folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y)
        row[j] = std::min(row[j], before[j - 2] + 1);
      rowMin = std::min(rowMin, row[j]);
    }
    if (rowMin > distanceMax)
      return distanceMax + 1;
  }
  return std::min(row[b.size()], distanceMax + 1);
}

unsigned misspeltDistanceMax(size_t nameBytes) {
  return std::clamp(static_cast<unsigned>(std::min<size_t>(nameBytes, 100) / 3), 1u, 4u);
}

} // namespace shardc
