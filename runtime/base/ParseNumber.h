// Texts that are a number and nothing else.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardc {

/// Sets `value` to the number that the text is, in base 10 or, for integers, another one. False if
/// it is none, or is out of T's range.
template <typename T, typename... Base>
bool parseNumber(std::string_view text, T &value, Base... base) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return error == std::errc() && end == text.data() + text.size();
}

/// The whole number from 0 on that the text is; nothing if it is none.
inline std::optional<int64_t> parseCount(std::string_view text) {
  int64_t value = 0;
  return parseNumber(text, value) && value >= 0 ? std::optional(value) : std::nullopt;
}

} // namespace shardc
