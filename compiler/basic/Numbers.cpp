#include "compiler/basic/Numbers.h"

#include <cmath>

#include "compiler/basic/Format.h"

namespace shardc {

std::string formatNumber(double value) {
  constexpr double kPlainMax = 999.95; // larger numbers would be rounded to 1000
  if (!std::isfinite(value) || std::abs(value) < kPlainMax)
    return std::abs(value) < 1e-4 ? fmt::format("{:.2g}", value) : fmt::format("{:.4g}", value);
  std::string digits = fmt::format("{:.0f}", value);
  for (size_t at = digits.size(); at > 3 && digits[at - 4] != '-';) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string formatDuration(double seconds) {
  constexpr double kHoursFrom = 36'000;
  if (seconds < 1e-3)
    return formatNumber(seconds * 1e6) + " us";
  if (seconds < 1)
    return formatNumber(seconds * 1e3) + " ms";
  if (seconds < kHoursFrom)
    return formatNumber(seconds) + " s";
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string formatCount(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

} // namespace shardc
