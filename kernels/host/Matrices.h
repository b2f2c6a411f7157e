// The matrices of a shard that Muon updates, from the parameter table's rows.
#pragma once

#include <vector>

#include "kernels/host/Ranges.h"

namespace shardc::kernels::host {

/// Rows of a shard that are one matrix: `take` rows, then others of the same tensor, over and over;
/// `period` is from the first of them to the next first one.
struct Matrix {
  int64_t begin = 0; ///< element of the shard
  int64_t rows = 0, columns = 0;
  int64_t take = 0, period = 0;
  const ParamRange *range = nullptr; ///< one of its tensor, for what they have in common

  int64_t numel() const { return rows * columns; }
  /// The element of the shard at which a row begins.
  int64_t rowBegin(int64_t row) const {
    return begin + (row / take * period + row % take) * columns;
  }
  /// The products of Newton-Schulz steps are of this extent: rows are turned into columns if there
  /// are more of them.
  bool isTurned() const { return rows > columns; }
  int64_t shortSide() const { return isTurned() ? columns : rows; }
  int64_t longSide() const { return isTurned() ? rows : columns; }
};

/// In the order of the shard. Ranges of one tensor that follow each other are one: its parts are
/// cut among ranks one by one.
inline std::vector<Matrix> matricesOfShard(const Call &call) {
  std::vector<Matrix> matrices;
  std::span<const ParamRange> ranges = rangesOfShard(call, 0);
  for (size_t i = 0; i < ranges.size();) {
    size_t next = i + 1;
    while (next < ranges.size() && ranges[next].key == ranges[i].key &&
           ranges[next].begin == ranges[next - 1].end)
      ++next;
    const ParamRange &range = ranges[i];
    int64_t row = range.row > 0 ? range.row : 1;
    int64_t rows = (ranges[next - 1].end - range.begin) / row, period = 0;
    for (int32_t turn : range.turns)
      period += turn;
    i = next;
    if (period == 0 || rows % period != 0) {
      matrices.push_back({range.begin, rows, row, rows, rows, &range});
      continue;
    }
    int64_t first = 0;
    for (int32_t turn : range.turns) {
      if (turn > 0)
        matrices.push_back(
            {range.begin + first * row, rows / period * turn, row, turn, period, &range});
      first += turn;
    }
  }
  return matrices;
}

} // namespace shardc::kernels::host
