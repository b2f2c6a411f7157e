// Checks of options that are whole numbers. CLI11's own say of a value out of range all 309 digits
// of the largest double.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace shardc::tools {

/// A number of at least `least`; `name` stands in the help.
inline CLI::Validator atLeast(int64_t least, const std::string &name) {
  return CLI::Validator(
      [least](const std::string &text) {
        int64_t value = 0;
        auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        bool isFine = error == std::errc() && end == text.data() + text.size() && value >= least;
        return isFine ? std::string()
                      : "needs a whole number of at least " + std::to_string(least) + ", found '" +
                            text + "'";
      },
      name);
}

inline CLI::Validator positive() { return atLeast(1, "POSITIVE"); }
inline CLI::Validator nonNegative() { return atLeast(0, "NONNEGATIVE"); }

} // namespace shardc::tools
