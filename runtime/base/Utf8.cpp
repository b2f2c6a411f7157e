#include "runtime/base/Utf8.h"

#include <algorithm>

#include <fmt/format.h>

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

uint32_t codePointAt(std::string_view text) {
  const size_t length = utf8Length(text);
  uint32_t code = static_cast<uint8_t>(text[0]) & (length > 1 ? 0x7fU >> length : 0xffU);
  for (size_t i = 1; i < length; ++i)
    code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3fU);
  return code;
}

size_t controlLength(std::string_view text) {
  if (text.empty())
    return 0;
  const uint32_t code = codePointAt(text);
  auto isIn = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  const size_t length = utf8Length(text);
  const bool isControl = length == 0 || code < 0x20 || isIn(0x7f, 0x9f) || code == 0x61c ||
                         isIn(0x200e, 0x200f) || isIn(0x2028, 0x202e) || isIn(0x2066, 0x2069);
  return isControl ? std::max<size_t>(length, 1) : 0;
}

std::string escapeControls(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    std::string_view character = text.substr(0, std::max<size_t>(utf8Length(text), 1));
    text.remove_prefix(character.size());
    if (controlLength(character) == 0 || kept.find(character[0]) != std::string_view::npos)
      out += character;
    else
      for (char c : character)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out;
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
