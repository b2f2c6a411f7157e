// The 8-bit floating-point formats e4m3 (without infinities) and e5m2, and their conversions.
#pragma once

#include <bit>
#include <cstdint>

namespace shardc {

/// Numbers of 8 bits: sign, four or five bits of exponent, three or two of mantissa.
struct F8E4M3 {
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};

/// What becomes of numbers beyond the largest: infinity, or NaN where there is none; or the
/// largest, as GPUs convert for products. PyTorch saturates e4m3 from 2.15 on, and not e5m2.
enum class Overflow : uint8_t { Special, Saturate };

namespace float8 {

/// What both formats have in common; `kMantissa` bits of it, and the exponent's bias.
template <int kMantissa, int kBias> float toFloat(uint8_t code) {
  // With the fields in their places, the exponent is too small by the difference of the biases; the
  // product is exact, also of numbers without a leading one.
  constexpr float kFactor = std::bit_cast<float>((254u - kBias) << 23);
  uint32_t rest = code & 0x7fu;
  float value = std::bit_cast<float>(rest << (23 - kMantissa)) * kFactor;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | ((code & 0x80u) << 24));
}

/// Rounded to nearest even, without sign, as if exponents had no end: from the first code that is
/// no number on, the number is too large. `rest` are the bits of a finite number without its sign.
template <int kMantissa, int kBias> uint32_t round(uint32_t rest) {
  constexpr uint32_t kSmallest = (128u - kBias) << 23; // with a leading one
  // Below it a number is a multiple of the smallest: the sum has these as its last bits.
  constexpr uint32_t kMagic = (128u - kBias - kMantissa + 23u) << 23;
  if (rest < kSmallest)
    return std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(kMagic)) -
           kMagic;
  constexpr int kDropped = 23 - kMantissa;
  uint32_t rounding = (1u << (kDropped - 1)) - 1 + ((rest >> kDropped) & 1u);
  return ((rest + rounding) >> kDropped) - ((127u - kBias) << kMantissa);
}

} // namespace float8

inline float toFloat(F8E4M3 x) {
  return (x.bits & 0x7fu) == 0x7fu
             ? std::bit_cast<float>(0x7fc00000u | (static_cast<uint32_t>(x.bits & 0x80u) << 24))
             : float8::toFloat<3, 7>(x.bits);
}

inline float toFloat(F8E5M2 x) {
  uint32_t rest = x.bits & 0x7fu;
  if (rest < 0x7cu)
    return float8::toFloat<2, 15>(x.bits);
  return std::bit_cast<float>((rest == 0x7cu ? 0x7f800000u : 0x7fc00000u) |
                              (static_cast<uint32_t>(x.bits & 0x80u) << 24));
}

inline F8E4M3 toF8E4M3(float x, Overflow overflow = Overflow::Special) {
  constexpr uint32_t kNan = 0x7f, kLargest = 0x7e; // 448
  uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t code = rest < 0x7f800000u ? float8::round<3, 7>(rest) : kNan;
  if (code > kLargest)
    code = overflow == Overflow::Saturate && rest <= 0x7f800000u ? kLargest : kNan;
  return {static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}

inline F8E5M2 toF8E5M2(float x, Overflow overflow = Overflow::Special) {
  constexpr uint32_t kNan = 0x7f, kInfinity = 0x7c, kLargest = 0x7b; // 57344
  uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t code = rest < 0x7f800000u ? float8::round<2, 15>(rest) : kInfinity;
  if (code > kLargest)
    code = overflow == Overflow::Saturate ? kLargest : kInfinity;
  return {static_cast<uint8_t>((rest > 0x7f800000u ? kNan : code) | (bits >> 24 & 0x80u))};
}

} // namespace shardc
