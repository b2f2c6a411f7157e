#include "compiler/basic/Suggest.h"

#include <algorithm>

#include "compiler/basic/Format.h"

namespace shardc {

namespace {

constexpr size_t kShortName = 5;

} // namespace

Suggestion suggest(llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> candidates) {
  Suggestion result;
  unsigned limit = misspeltDistanceMax(name.size());
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
