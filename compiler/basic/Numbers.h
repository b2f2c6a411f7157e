// Numbers as people read them: in a unit that keeps them short, without exponents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardc {

/// `0.25`, `12.35`, `9,876`, `1,234,567`: four digits, or all of a larger number's before the
/// point.
std::string formatNumber(double value);

/// `85 us`, `765.3 ms`, `122.3 s`, `2,710 s`, `11.4 h`.
std::string formatDuration(double seconds);

/// `1 file`, `2 files`: a noun whose plural ends with an s.
std::string formatCount(int64_t count, std::string_view noun);

} // namespace shardc
