// Scales of blocks of 4 bits that are quantised again, to 8 bits, as bitsandbytes does it ("double
// quantisation"): the mean of a weight's scales is subtracted, and groups of 256 of the rest have a
// scale each.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/Nf4.h"

namespace shardc {

/// bitsandbytes' dynamic map of 8 bits: the positive values but 1, as PyTorch computes them on
/// processors with AVX2. Negative ones mirror them. (Where bitsandbytes quantises on a processor,
/// it writes -1 over the lowest one.)
inline constexpr std::array<float, 127> kDynamicValues = {
    // clang-format off
    5.5000004e-07f, 3.2500002e-06f, 7.75e-06f, 2.1249998e-05f, 4.375e-05f, 6.625e-05f, 8.875e-05f,
    0.00015625001f, 0.00026875004f, 0.00038125002f, 0.00049375003f, 0.0006062501f, 0.00071875006f,
    0.00083125f, 0.0009437501f, 0.0012812499f, 0.00184375f, 0.00240625f, 0.00296875f, 0.0035312497f,
    0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f, 0.00634375f, 0.00690625f, 0.00746875f,
    0.00803125f, 0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f, 0.01421875f, 0.01703125f,
    0.019843752f, 0.02265625f, 0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, 0.036718752f,
    0.03953125f, 0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f,
    0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f, 0.07609375f,
    0.07890625f, 0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f, 0.092968754f, 0.09578126f,
    0.09859375f, 0.107031256f, 0.12109375f, 0.13515624f, 0.14921875f, 0.16328125f, 0.17734376f,
    0.19140625f, 0.20546874f, 0.21953125f, 0.23359375f, 0.24765624f, 0.26171875f, 0.27578127f,
    0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, 0.34609374f, 0.36015624f, 0.37421876f,
    0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f, 0.45859373f, 0.47265625f,
    0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f, 0.54296875f, 0.5570313f, 0.5710938f,
    0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f, 0.6414063f, 0.65546876f, 0.6695312f,
    0.68359375f, 0.6976563f, 0.7117188f, 0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f,
    0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f, 0.8382813f, 0.85234374f, 0.86640626f,
    0.8804687f, 0.89453125f, 0.9085938f, 0.92265624f, 0.93671876f, 0.9507812f, 0.96484375f,
    0.9789063f, 0.99296874f
    // clang-format on
};
/// All values in order: by their codes.
inline constexpr std::array<float, 256> kDynamicMap = [] {
  std::array<float, 256> map{};
  for (size_t i = 0; i < kDynamicValues.size(); ++i)
    map[126 - i] = -kDynamicValues[i], map[128 + i] = kDynamicValues[i];
  map[255] = 1;
  return map;
}();

/// The scales of a weight's blocks in 8 bits.
struct Nf4Scales {
  static constexpr size_t kGroup = 256;
  float offset = 0; ///< the mean, rounded once
  std::vector<uint8_t> codes;
  std::vector<float> groups; ///< for each group, the largest difference from the offset
};

/// The code of the nearest value; of two that are as near, the lower one.
inline uint8_t dynamicCodeOf(float x) {
  size_t low = 0, high = kDynamicMap.size() - 1;
  while (low < high) {
    size_t middle = (low + high) / 2;
    bool isAbove = x > (kDynamicMap[middle] + kDynamicMap[middle + 1]) / 2;
    (isAbove ? low : high) = isAbove ? middle + 1 : middle;
  }
  return static_cast<uint8_t>(low);
}

/// Quantises all scales of a weight together: their mean is the offset, and each group of 256 has
/// the scale of its largest difference.
inline Nf4Scales toNf4Scales(std::span<const float> scales) {
  Nf4Scales made;
  double sum = 0;
  for (float scale : scales)
    sum += static_cast<double>(scale);
  made.offset = static_cast<float>(sum / static_cast<double>(std::max<size_t>(scales.size(), 1)));
  for (size_t first = 0; first < scales.size(); first += Nf4Scales::kGroup) {
    std::span<const float> group =
        scales.subspan(first, std::min(Nf4Scales::kGroup, scales.size() - first));
    float most = 0;
    for (float scale : group)
      most = std::max(most, std::fabs(scale - made.offset));
    made.groups.push_back(most);
    for (float scale : group)
      made.codes.push_back(dynamicCodeOf((scale - made.offset) * (1 / most)));
  }
  return made;
}

/// A scale of which `code` is that of the difference from the offset.
inline float openScale(uint8_t code, float group, float offset) {
  float difference = kDynamicMap[code] * group; // rounded before the sum
  return difference + offset;
}

/// One element of DType::NF4x512: eight blocks of a row, whose scales are in the same group.
struct Nf4Record {
  static constexpr int64_t kBlocks = 8, kNumbers = kBlocks * Nf4Block::kNumbers;
  float group, offset;
  uint8_t scales[kBlocks];
  uint8_t codes[kBlocks][Nf4Block::kNumbers / 2];
};
static_assert(sizeof(Nf4Record) == dtypeBytes(DType::NF4x512) &&
              Nf4Record::kNumbers == numbersIn(DType::NF4x512));

/// Quantises 512 numbers whose scales make up a group and have an offset of their own. Initial
/// weights are quantised like this, as each rank draws only its part of a weight.
inline Nf4Record toNf4Record(const float *numbers) {
  std::array<float, Nf4Record::kBlocks> scales{};
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = nf4ScaleOf(numbers + i * Nf4Block::kNumbers);
  const Nf4Scales nested = toNf4Scales(scales);
  Nf4Record record{nested.groups[0], nested.offset, {}, {}};
  for (size_t i = 0; i < scales.size(); ++i) {
    record.scales[i] = nested.codes[i];
    toNf4Codes(numbers + i * Nf4Block::kNumbers, scales[i], record.codes[i]);
  }
  return record;
}

/// The 512 numbers that a record stands for.
inline void fromNf4Record(const Nf4Record &record, float *numbers) {
  for (size_t i = 0; i < Nf4Record::kBlocks; ++i)
    fromNf4Codes(record.codes[i], openScale(record.scales[i], record.group, record.offset),
                 numbers + i * Nf4Block::kNumbers);
}

/// The scales in 8 bits of all blocks of a weight, in the order of its rows.
struct NestedScales {
  size_t blocks;                      ///< in a row
  std::vector<uint8_t> codes;         ///< by block
  std::vector<float> divisors;        ///< by block: numbers are coded in multiples of it
  std::vector<float> groups, offsets; ///< by record

  NestedScales(int64_t rows, int64_t columns)
      : blocks(static_cast<size_t>(columns / Nf4Block::kNumbers)),
        codes(static_cast<size_t>(rows) * blocks), divisors(codes.size()),
        groups(codes.size() / Nf4Record::kBlocks), offsets(groups.size()) {}

  /// Sets the scales of a row to those of row `from` of a matrix. They are also the divisors.
  void setRow(int64_t row, const Nf4Scales &matrix, int64_t from) {
    size_t to = static_cast<size_t>(row) * blocks, at = static_cast<size_t>(from) * blocks;
    for (size_t end = to + blocks; to < end; ++to, ++at) {
      const float group = matrix.groups[at / Nf4Scales::kGroup];
      codes[to] = matrix.codes[at];
      divisors[to] = openScale(matrix.codes[at], group, matrix.offset);
      groups[to / Nf4Record::kBlocks] = group;
      offsets[to / Nf4Record::kBlocks] = matrix.offset;
    }
  }

  /// Quantises the numbers of a record of the weight.
  Nf4Record record(const float *numbers, size_t number) const {
    Nf4Record made{groups[number], offsets[number], {}, {}};
    for (size_t i = 0; i < Nf4Record::kBlocks; ++i) {
      const size_t block = number * Nf4Record::kBlocks + i;
      made.scales[i] = codes[block];
      toNf4Codes(numbers + i * Nf4Block::kNumbers, divisors[block], made.codes[i]);
    }
    return made;
  }

  /// Replaces the numbers of rows by those that their records stand for.
  void round(float *numbers, int64_t firstRow, int64_t rows) const {
    const size_t inRow = blocks / Nf4Record::kBlocks, first = static_cast<size_t>(firstRow) * inRow,
                 end = first + static_cast<size_t>(rows) * inRow;
    for (size_t number = first; number < end; ++number, numbers += Nf4Record::kNumbers)
      fromNf4Record(record(numbers, number), numbers);
  }
};

} // namespace shardc
