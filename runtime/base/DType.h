// Element types, their sizes and names, and the conversions between fp32 and the 16-bit formats.
// Conversions round to nearest, ties to even, as PyTorch's do; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardc {

/// The element types of values, in the order of DTypes.def, which has their words and sizes.
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

/// The type's word in plan text, and the type of a word; nothing for an unknown word.
std::string_view dtypeName(DType type);
std::optional<DType> parseDType(std::string_view name);

/// A bfloat16 number, stored as its 16 bits.
struct BF16 {
  uint16_t bits;
};

/// Exact: fp32 has all numbers of the 16-bit types.
inline float toFloat(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float toFloat(float x) { return x; }

/// Overflow gives infinity. A NaN keeps its sign and upper mantissa bits.
inline BF16 toBF16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) // a NaN must not be rounded to infinity
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>((bits + rounding) >> 16)};
}

/// An IEEE half-precision number, stored as its 16 bits.
struct F16 {
  uint16_t bits;
};

/// Exact, also for subnormal numbers; a NaN becomes quiet.
inline float toFloat(F16 x) {
  uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  // Shifted into the fields of a float, the exponent is 112 too small. The product corrects that
  // and is exact, even for subnormal numbers.
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(rest << 13) * 0x1p112f);
  if (rest >= 0x7c00u)
    bits = 0x7f800000u | (rest << 13) | (rest > 0x7c00u ? 0x400000u : 0u);
  return std::bit_cast<float>(bits | sign);
}

/// Numbers of at least 65520 become infinity, small ones subnormal or 0; a NaN stays NaN.
inline F16 toF16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t half = ((rest + 0xfffu + ((rest >> 13) & 1u)) >> 13) - (112u << 10);
  // Numbers below 2^-14 are multiples of 2^-24. Adding 0.5 rounds to such a multiple and leaves it
  // in the last bits of the sum.
  uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000u;
  half = rest < 0x38800000u ? small : half;
  half = rest >= 0x477ff000u ? 0x7c00u : half;
  half = rest > 0x7f800000u ? 0x7e00u | ((rest >> 13) & 0x1ffu) : half;
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
}

/// The types in which models compute and collectives add. Sums of 16-bit types are computed in
/// fp32.
constexpr bool isComputeType(DType type) {
  return type == DType::F32 || type == DType::BF16 || type == DType::F16;
}

/// Numbers that an element encodes: more than 1 for records of numbers in 4 bits.
constexpr int64_t numbersIn(DType type) {
  return type == DType::NF4x64 ? 64 : type == DType::NF4x512 ? 512 : 1;
}
/// Whether an element is a block of numbers with its scale, so that single numbers have no address.
constexpr bool isRecord(DType type) { return numbersIn(type) > 1; }

/// The number after rounding to a type in which models compute.
inline float roundedTo(DType type, float x) {
  return type == DType::BF16 ? toFloat(toBF16(x)) : type == DType::F16 ? toFloat(toF16(x)) : x;
}

/// Converts to T's precision; for templates over float, BF16 and F16.
template <typename T> T fromFloat(float x);
template <> inline float fromFloat<float>(float x) { return x; }
template <> inline BF16 fromFloat<BF16>(float x) { return toBF16(x); }
template <> inline F16 fromFloat<F16>(float x) { return toF16(x); }

} // namespace shardc
