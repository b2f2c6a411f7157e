// Assigns rows to packs. Rows have lengths, a pack has a capacity, and no row is cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

enum class PackingKind : uint8_t {
  None,     ///< one pack for each row
  FirstFit, ///< first-fit decreasing: few packs
  Balanced, ///< equally few packs with nearly equal sums of squared lengths
};

/// Returns the rows of each pack, by index. Each row occurs once, and no pack's sum of lengths
/// exceeds the capacity. The order of packs, and of rows in them, is random and determined by the
/// seed. InvalidInput for a row that is empty or longer than the capacity.
Result<std::vector<std::vector<uint32_t>>>
packRows(std::span<const int32_t> lengths, int64_t capacity, PackingKind kind, uint32_t seed);

/// Returns the sum of squares of the lengths of some rows, to which the time of attention within
/// documents is proportional.
int64_t attentionCost(std::span<const int32_t> lengths, std::span<const uint32_t> rows);

} // namespace shardc::data
