// Assigns rows to packs. Rows have lengths, a pack has a capacity, and no row is cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

enum class PackingKind : uint8_t {
  None,     ///< a pack for each row
  FirstFit, ///< first-fit decreasing: few packs
  Balanced, ///< as few packs, whose sums of squares of lengths are nearly equal: equal attention
};

/// Rows of each pack, by their index; each row occurs once, and no sum of lengths exceeds the
/// capacity. Packs, and rows in them, are in a random order that the seed gives. InvalidInput for a
/// row that is longer than the capacity, or without length.
Result<std::vector<std::vector<uint32_t>>>
packRows(std::span<const int32_t> lengths, int64_t capacity, PackingKind kind, uint32_t seed);

/// Sum of squares of the lengths of some rows: attention within documents takes time in proportion.
int64_t attentionCost(std::span<const int32_t> lengths, std::span<const uint32_t> rows);

} // namespace shardc::data
