#include "compiler/basic/Suggest.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc {

namespace {

constexpr size_t kShortName = 5;
constexpr unsigned kDistanceMax = 4;

char folded(char c) { return c == '-' ? '_' : llvm::toLower(c); }

} // namespace

unsigned editDistance(llvm::StringRef a, llvm::StringRef b, unsigned distanceMax) {
  size_t difference = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (difference > distanceMax)
    return distanceMax + 1;
  // Three rows of the usual table: a swap of neighbours needs the row before the previous one.
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

Suggestion suggest(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates) {
  Suggestion result;
  unsigned limit = std::clamp(static_cast<unsigned>(name.size() / 3), 1u, kDistanceMax);
  result.distance = limit + 1;
  for (llvm::StringRef candidate : candidates) {
    unsigned distance = editDistance(name, candidate, limit);
    if (distance > limit || distance > result.distance)
      continue;
    if (distance < result.distance)
      result.names.clear();
    result.distance = distance;
    if (std::find(result.names.begin(), result.names.end(), candidate) == result.names.end())
      result.names.push_back(candidate);
  }
  if (result.names.empty())
    result.distance = 0;
  unsigned sureMax = name.size() < kShortName ? 1 : 2;
  result.sure = result.names.size() == 1 && result.distance <= sureMax;
  return result;
}

std::string quotedList(llvm::ArrayRef<llvm::StringRef> names, size_t namesMax) {
  std::string out;
  size_t shown = std::min(names.size(), namesMax);
  for (size_t i = 0; i < shown; ++i)
    out += fmt::format("{}'{}'", i ? ", " : "", names[i]);
  if (shown < names.size())
    out += fmt::format("{}... ({} more)", shown ? ", " : "", names.size() - shown);
  return out;
}

} // namespace shardc
