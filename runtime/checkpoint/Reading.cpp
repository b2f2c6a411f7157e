#include "runtime/checkpoint/Reading.h"

#include <algorithm>

namespace shardc::checkpoint {
namespace {

constexpr size_t kListed = 20;

} // namespace

bool isNumber(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::string listed(const std::vector<std::string> &names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i)
    text += "\n  " + names[i];
  if (names.size() > kListed)
    text += fmt::format("\n  and {} more", names.size() - kListed);
  return text;
}

} // namespace shardc::checkpoint
