// How much of a random suite runs.
#pragma once

#include <cstdlib>
#include <string_view>

namespace shardc::test {

/// True if all of it runs: SHARDC_LONG=1, which `./dev test --long` sets. A part runs otherwise.
inline bool isLong() {
  const char *value = std::getenv("SHARDC_LONG");
  return value != nullptr && std::string_view(value) == "1";
}

/// Sanitized programs take ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

} // namespace shardc::test
