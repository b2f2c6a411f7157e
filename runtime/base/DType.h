// Element types, their sizes and names, and the conversions between fp32 and the 16-bit formats.
// Conversions round to nearest, ties to even, as PyTorch's do; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardc {

enum class DType : uint8_t {
#define DTYPE(enumerator, name, bytes) enumerator,
#include "runtime/base/DTypes.def"
};

/// Bytes of one element.
constexpr int64_t dtypeBytes(DType type) {
  switch (type) {
#define DTYPE(enumerator, name, bytes)                                                             \
  case DType::enumerator:                                                                          \
    return bytes;
#include "runtime/base/DTypes.def"
  }
  return 0;
}

std::string_view dtypeName(DType type);
std::optional<DType> parseDType(std::string_view name);

/// A bfloat16 number as its 16 bits.
struct BF16 {
  uint16_t bits;
};

inline float toFloat(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float toFloat(float x) { return x; }

inline BF16 toBF16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) // a NaN must not round to infinity
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>((bits + rounding) >> 16)};
}

/// Converts to T's precision; for templates over float and BF16.
template <typename T> T fromFloat(float x);
template <> inline float fromFloat<float>(float x) { return x; }
template <> inline BF16 fromFloat<BF16>(float x) { return toBF16(x); }

} // namespace shardc
