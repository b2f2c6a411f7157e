// Formats numbers for people: in a unit that keeps them short, without exponents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardc {

/// Formats a number with four digits, or with all digits before the point if there are more:
/// `0.25`, `12.35`, `9,876`, `1,234,567`.
std::string formatNumber(double value);

/// Formats a duration: `85 us`, `765.3 ms`, `122.3 s`, `2,710 s`, `11.4 h`.
std::string formatDuration(double seconds);

/// Formats a count with a noun whose plural ends with an s: `1 file`, `2 files`.
std::string formatCount(int64_t count, std::string_view noun);

} // namespace shardc
