// Blocks of 64 numbers with 4 bits each: NF4 of QLoRA (arXiv 2305.14314), in the form of
// bitsandbytes. The scale is the amax. A number has the code of the nearest table value times the
// scale; in a tie, the lower code.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// The values of the codes, in multiples of the scale: the table of bitsandbytes.
inline constexpr std::array<float, 16> kNf4Values = {-1.0f,
                                                     -0.6961928009986877f,
                                                     -0.5250730514526367f,
                                                     -0.39491748809814453f,
                                                     -0.28444138169288635f,
                                                     -0.18477343022823334f,
                                                     -0.09105003625154495f,
                                                     0.0f,
                                                     0.07958029955625534f,
                                                     0.16093020141124725f,
                                                     0.24611230194568634f,
                                                     0.33791524171829224f,
                                                     0.44070982933044434f,
                                                     0.5626170039176941f,
                                                     0.7229568362236023f,
                                                     1.0f};

/// One element of DType::NF4x64.
struct Nf4Block {
  static constexpr int64_t kNumbers = 64;
  float scale;
  uint8_t codes[kNumbers / 2]; ///< the first of two numbers is in the upper 4 bits
};
static_assert(sizeof(Nf4Block) == dtypeBytes(DType::NF4x64) &&
              Nf4Block::kNumbers == numbersIn(DType::NF4x64));

/// For each code, the largest number (in multiples of the scale) that is rounded to it or to a
/// lower code: the middle between two values, rounded to fp32 as in bitsandbytes.
inline constexpr std::array<float, 15> kNf4Bounds = [] {
  std::array<float, 15> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i)
    bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return bounds;
}();

/// The code of a number in multiples of its block's scale; 0 if it is NaN.
inline uint8_t nf4CodeOf(float x) {
  int code = 0;
  for (float bound : kNf4Bounds)
    code += x > bound ? 1 : 0;
  return static_cast<uint8_t>(code);
}

/// The amax of 64 numbers; NaN if one of them is.
inline float nf4ScaleOf(const float *numbers) {
  float scale = 0;
  for (int64_t i = 0; i < Nf4Block::kNumbers; ++i)
    if (float size = std::fabs(numbers[i]); size > scale || std::isnan(size))
      scale = size; // once NaN, it stays NaN
  return scale;
}

/// The codes of 64 numbers in multiples of the scale, two in each byte.
inline void toNf4Codes(const float *numbers, float scale, uint8_t *codes) {
  float inverse = 1.0f / scale;
  for (int64_t i = 0; i < Nf4Block::kNumbers / 2; ++i)
    codes[i] = static_cast<uint8_t>(nf4CodeOf(numbers[2 * i] * inverse) << 4 |
                                    nf4CodeOf(numbers[2 * i + 1] * inverse));
}

/// The 64 numbers that the codes stand for, each rounded once to f32.
inline void fromNf4Codes(const uint8_t *codes, float scale, float *numbers) {
  for (int64_t i = 0; i < Nf4Block::kNumbers / 2; ++i) {
    numbers[2 * i] = kNf4Values[codes[i] >> 4] * scale;
    numbers[2 * i + 1] = kNf4Values[codes[i] & 15] * scale;
  }
}

/// Quantises 64 numbers. As in bitsandbytes, a block of zeros has scale 0 and codes 0.
inline Nf4Block toNf4(const float *numbers) {
  Nf4Block block{nf4ScaleOf(numbers), {}};
  toNf4Codes(numbers, block.scale, block.codes);
  return block;
}

/// The 64 numbers that a block stands for.
inline void fromNf4(const Nf4Block &block, float *numbers) {
  fromNf4Codes(block.codes, block.scale, numbers);
}

} // namespace shardc
