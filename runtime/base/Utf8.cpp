#include "runtime/base/Utf8.h"

#include <cstdint>

namespace shardc {

size_t utf8Length(std::string_view text) {
  auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  auto tail = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
  if (text.empty())
    return 0;
  int first = at(0);
  if (first < 0x80)
    return 1;
  if (first >= 0xC2 && first <= 0xDF)
    return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    int low = first == 0xE0 ? 0xA0 : 0x80;
    int high = first == 0xED ? 0x9F : 0xBF;
    return at(1) >= low && at(1) <= high && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    int low = first == 0xF0 ? 0x90 : 0x80;
    int high = first == 0xF4 ? 0x8F : 0xBF;
    return at(1) >= low && at(1) <= high && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

std::optional<size_t> findInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    size_t length = utf8Length(text.substr(i));
    if (length == 0)
      return i;
    i += length;
  }
  return std::nullopt;
}

} // namespace shardc
