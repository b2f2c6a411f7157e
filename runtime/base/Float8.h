// The 8-bit floating-point formats e4m3 (without infinities) and e5m2, and their conversions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

namespace shardc {

/// 8-bit numbers with one sign bit: e4m3 has four exponent and three mantissa bits, e5m2 five and
/// two.
struct F8E4M3 {
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};

/// How numbers above the largest one are converted: to infinity (NaN if the type has none), or to
/// the largest number, as GPUs do for products. PyTorch saturates e4m3 since 2.15, but not e5m2.
enum class Overflow : uint8_t { Special, Saturate };

namespace float8 {

/// Conversion shared by both formats, which differ in the number of mantissa bits and in the
/// exponent's bias.
template <int kMantissa, int kBias> float toFloat(uint8_t code) {
  // Shifted into the fields of a float, the exponent is too small by the difference of the biases.
  // The product corrects that and is exact, even for subnormal numbers.
  constexpr float kFactor = std::bit_cast<float>((254u - kBias) << 23);
  uint32_t rest = code & 0x7fu;
  float value = std::bit_cast<float>(rest << (23 - kMantissa)) * kFactor;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | ((code & 0x80u) << 24));
}

/// Rounds to nearest even, without the sign, as if the range of exponents were unlimited: a code
/// that does not encode a number means that the number is too large. `rest` has the bits of a
/// finite number without its sign.
template <int kMantissa, int kBias> uint32_t round(uint32_t rest) {
  constexpr uint32_t kSmallest = (128u - kBias) << 23; // the smallest normal number
  // Numbers below it are multiples of the smallest subnormal. Adding the magic number rounds to
  // such a multiple and leaves it in the last bits of the sum.
  constexpr uint32_t kMagic = (128u - kBias - kMantissa + 23u) << 23;
  if (rest < kSmallest)
    return std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(kMagic)) -
           kMagic;
  constexpr int kDropped = 23 - kMantissa;
  uint32_t rounding = (1u << (kDropped - 1)) - 1 + ((rest >> kDropped) & 1u);
  return ((rest + rounding) >> kDropped) - ((127u - kBias) << kMantissa);
}

} // namespace float8

/// These conversions are exact.
inline float toFloat(F8E4M3 x) {
  return (x.bits & 0x7fu) == 0x7fu
             ? std::bit_cast<float>(0x7fc00000u | (static_cast<uint32_t>(x.bits & 0x80u) << 24))
             : float8::toFloat<3, 7>(x.bits);
}

/// Exact. Infinities and NaNs are those of IEEE numbers.
inline float toFloat(F8E5M2 x) {
  uint32_t rest = x.bits & 0x7fu;
  if (rest < 0x7cu)
    return float8::toFloat<2, 15>(x.bits);
  return std::bit_cast<float>((rest == 0x7cu ? 0x7f800000u : 0x7fc00000u) |
                              (static_cast<uint32_t>(x.bits & 0x80u) << 24));
}

/// Rounds to nearest, ties to even; the sign is kept, also that of NaN. Infinity counts as a number
/// above the largest one, 448.
inline F8E4M3 toF8E4M3(float x, Overflow overflow = Overflow::Special) {
  constexpr uint32_t kNan = 0x7f, kLargest = 0x7e; // 448
  uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t code = rest < 0x7f800000u ? float8::round<3, 7>(rest) : kNan;
  if (code > kLargest)
    code = overflow == Overflow::Saturate && rest <= 0x7f800000u ? kLargest : kNan;
  return {static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}

/// Rounds to nearest, ties to even. The largest number is 57344; infinity stays infinity unless
/// `overflow` saturates.
inline F8E5M2 toF8E5M2(float x, Overflow overflow = Overflow::Special) {
  constexpr uint32_t kNan = 0x7f, kInfinity = 0x7c, kLargest = 0x7b; // 57344
  uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t code = rest < 0x7f800000u ? float8::round<2, 15>(rest) : kInfinity;
  if (code > kLargest)
    code = overflow == Overflow::Saturate ? kLargest : kInfinity;
  return {static_cast<uint8_t>((rest > 0x7f800000u ? kNan : code) | (bits >> 24 & 0x80u))};
}

/// How a grouped product quantises its operands to 8 bits: the values of attribute `fp8_recipe`.
enum class Fp8Factors : uint8_t { None, Tensorwise, Blockwise, Mxfp8, Delayed };

/// Whether the rows of each group, and each matrix, have a single scale.
inline bool isScaledWhole(Fp8Factors recipe) {
  return recipe == Fp8Factors::Tensorwise || recipe == Fp8Factors::Delayed;
}

/// The shapes of blocks that share one scale. Blocks at the ends of a matrix may be smaller.
enum class ScaleBlocks : uint8_t {
  Rows128,    ///< 1 by 128; scales f32[cols/128,rows], in the layout that GPUs read
  Squares128, ///< 128 by 128; scales f32[rows/128,cols/128]
  Rows32,     ///< 1 by 32; scales e8m0[rows,cols/32], each the exponent of a power of two
};

/// Rows and columns of a matrix, of a block, or of a matrix of scales.
struct Extents {
  int64_t rows, cols;
  bool operator==(const Extents &) const = default;
};

/// The extents of one block.
inline Extents blockOf(ScaleBlocks blocks) {
  return {blocks == ScaleBlocks::Squares128 ? 128 : 1, blocks == ScaleBlocks::Rows32 ? 32 : 128};
}

/// The extents of the matrix of scales of a matrix that is divided into such blocks.
inline Extents scalesOf(ScaleBlocks blocks, Extents matrix) {
  Extents block = blockOf(blocks);
  Extents count = {(matrix.rows + block.rows - 1) / block.rows,
                   (matrix.cols + block.cols - 1) / block.cols};
  return blocks == ScaleBlocks::Rows128 ? Extents{count.cols, count.rows} : count;
}

/// The index of an element's scale among the scales.
inline int64_t scaleIndex(ScaleBlocks blocks, Extents scales, int64_t row, int64_t col) {
  Extents block = blockOf(blocks);
  int64_t down = row / block.rows, right = col / block.cols;
  return blocks == ScaleBlocks::Rows128 ? right * scales.cols + down : down * scales.cols + right;
}

/// The block shape that gives a matrix scales of these extents, if there is one.
inline std::optional<ScaleBlocks> blocksOf(bool isE8M0, Extents scales, Extents matrix) {
  for (ScaleBlocks blocks : {ScaleBlocks::Rows128, ScaleBlocks::Squares128, ScaleBlocks::Rows32})
    if (isE8M0 == (blocks == ScaleBlocks::Rows32) && scalesOf(blocks, matrix) == scales)
      return blocks;
  return std::nullopt;
}

/// The power of two that an e8m0 scale encodes: 2^(bits - 127); NaN if all bits are set.
inline float toFloatE8M0(uint8_t bits) {
  if (bits == 0xff)
    return std::numeric_limits<float>::quiet_NaN();
  // The smallest scale is a subnormal float.
  return std::bit_cast<float>(bits == 0 ? 0x400000u : static_cast<uint32_t>(bits) << 23);
}

/// The smallest power of two that is not less than x, as e8m0. x must not be negative.
inline uint8_t toE8M0(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits >= 0x7f800000u) // infinity and NaN
    return 0xff;
  uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  bool isAbove = exponent == 0 ? mantissa > 0x400000u : mantissa > 0;
  return static_cast<uint8_t>(std::min(exponent + (isAbove ? 1u : 0u), 0xfeu));
}

} // namespace shardc
