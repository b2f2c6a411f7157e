// How much of a random test suite runs.
#pragma once

#include <cstdlib>
#include <string_view>

namespace shardc::test {

/// Whether all of it runs (SHARDC_LONG=1, which `./dev test --long` sets), or only a part.
inline bool isLong() {
  const char *value = std::getenv("SHARDC_LONG");
  return value != nullptr && std::string_view(value) == "1";
}

/// Whether a sanitizer is on; sanitized programs take ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

} // namespace shardc::test
