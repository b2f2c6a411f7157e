// Checks for options that are whole numbers. For a value out of range, CLI11's own would print all
// 309 digits of the largest double.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace shardc::tools {

inline std::optional<int64_t> wholeNumber(const std::string &text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool isWhole = error == std::errc() && end == text.data() + text.size();
  return isWhole ? std::optional(value) : std::nullopt;
}

/// A number of at least `least`; `name` is printed in the help.
inline CLI::Validator atLeast(int64_t least, const std::string &name) {
  return CLI::Validator(
      [least](const std::string &text) {
        std::optional<int64_t> value = wholeNumber(text);
        return value && *value >= least ? std::string()
                                        : "needs a whole number of at least " +
                                              std::to_string(least) + ", found '" + text + "'";
      },
      name);
}

/// A number of `least` to `most`; `name` is printed in the help.
inline CLI::Validator between(int64_t least, int64_t most, const std::string &name) {
  return CLI::Validator(
      [least, most](const std::string &text) {
        std::optional<int64_t> value = wholeNumber(text);
        return value && *value >= least && *value <= most
                   ? std::string()
                   : "needs a whole number of " + std::to_string(least) + " to " +
                         std::to_string(most) + ", found '" + text + "'";
      },
      name);
}

/// More threads than any machine has cores only take memory.
inline CLI::Validator threadCount() { return between(1, 1024, "1..1024"); }
inline CLI::Validator positive() { return atLeast(1, "POSITIVE"); }
inline CLI::Validator nonNegative() { return atLeast(0, "NONNEGATIVE"); }

} // namespace shardc::tools
