// The matrices of a shard that Muon updates, derived from the parameter table.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "kernels/host/Ranges.h"

namespace shardc::kernels::host {

/// The rows of a shard that form one matrix: `take` rows, then rows of other matrices of the same
/// tensor, with the next `take` rows beginning `period` rows after the previous ones. Several
/// ranks' parts of a matrix may lie one after the other; each part has some of its rows, or of its
/// columns.
struct Matrix {
  int64_t begin = 0; ///< first element in the shard, or in the first part
  int64_t rows = 0, columns = 0;
  int64_t take = 0, period = 0;
  const ParamRange *range = nullptr; ///< a range of its tensor, for the settings of all of them
  int64_t parts = 1, part = 0;       ///< part: index of this rank's part
  int64_t stride = 0;                ///< elements from one part to the next
  bool cutsColumns = false;

  int64_t numel() const { return rows * columns; }
  int64_t partRows() const { return cutsColumns ? rows : rows / parts; }
  int64_t partColumns() const { return cutsColumns ? columns / parts : columns; }
  /// Index of the element at which a row of a part begins.
  int64_t rowBegin(int64_t row) const {
    return begin + (row / take * period + row % take) * partColumns();
  }
  /// The row of the matrix that is row `row` of part `ofPart`.
  int64_t wholeRow(int64_t ofPart, int64_t row) const {
    return cutsColumns ? row : ofPart * partRows() + row;
  }
  int64_t wholeColumn(int64_t ofPart) const { return cutsColumns ? ofPart * partColumns() : 0; }
  /// Whether Newton-Schulz steps use the transposed matrix, so that their products have the extent
  /// of the short side.
  bool isTransposed() const { return rows > columns; }
  int64_t shortSide() const { return isTransposed() ? columns : rows; }
  int64_t longSide() const { return isTransposed() ? rows : columns; }
};

/// Returns the matrices in the order of the ranges. Adjacent ranges of one tensor are one range,
/// because parts of interleaved matrices are divided among ranks one by one. `isSplit`: interleaved
/// matrices of a tensor become separate matrices.
inline std::vector<Matrix> matricesOf(std::span<const ParamRange> ranges, bool isSplit = true) {
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < ranges.size();) {
    size_t next = i + 1;
    while (next < ranges.size() && ranges[next].key == ranges[i].key &&
           ranges[next].begin == ranges[next - 1].end)
      ++next;
    const ParamRange &range = ranges[i];
    int64_t row = range.row > 0 ? range.row : 1;
    int64_t rows = (ranges[next - 1].end - range.begin) / row, period = 0;
    for (int32_t turn : range.turns)
      period += std::abs(turn);
    i = next;
    if (!isSplit || period == 0 || rows % period != 0) {
      matrices.push_back({range.begin, rows, row, rows, rows, &range});
      continue;
    }
    int64_t first = 0;
    for (int32_t turn : range.turns) {
      if (turn > 0)
        matrices.push_back(
            {range.begin + first * row, rows / period * turn, row, turn, period, &range});
      for (int64_t at = first; turn < 0 && at < rows; at += period)
        matrices.push_back({range.begin + at * row, -turn, row, -turn, period, &range});
      first += std::abs(turn);
    }
  }
  return matrices;
}

/// The operand `u`, with the updates of whole matrices: the parts of several ranks, one after the
/// other.
inline constexpr int kWholeUpdates = 4;
inline bool hasWholeUpdates(const Call &call) { return call.inCount > kWholeUpdates; }

/// The shard's elements within this rank's part of operand `u`.
struct OwnElements {
  int64_t begin = 0, end = 0;
};
/// The position of the `numel` elements of a shard with ranges `own` among those with ranges `all`.
inline OwnElements elementsAmong(std::span<const ParamRange> own, int64_t numel,
                                 std::span<const ParamRange> all) {
  if (own.empty() || all.empty())
    return {};
  auto startOf = [](const ParamRange &range) { return range.inBlock - range.begin; };
  int64_t begin = startOf(own.front()) - startOf(all.front());
  return {begin, begin + numel};
}
inline OwnElements ownElements(const Call &call) {
  return elementsAmong(rangesOfShard(call, 0), call.in[0].numel(), rangesOfShard(call, 1));
}
inline bool hasRowsOf(OwnElements own, const Matrix &matrix) {
  return own.begin < matrix.rowBegin(matrix.rows - 1) + matrix.columns && matrix.begin < own.end;
}

/// The matrices that a call updates: the whole matrices of the shard or, with `u`, all matrices
/// that have rows in the shard. In the second case, positions refer to `u`.
inline std::vector<Matrix> matricesToUpdate(const Call &call) {
  if (!hasWholeUpdates(call))
    return matricesOf(rangesOfShard(call, 0));
  OwnElements own = ownElements(call);
  int64_t ranks = call.attrs.tensor_parts, stride = call.in[kWholeUpdates].numel() / ranks;
  std::vector<Matrix> matrices;
  for (Matrix matrix : matricesOf(rangesOfShard(call, 1))) {
    if (!hasRowsOf(own, matrix))
      continue;
    const ParamRange &range = *matrix.range;
    if (ranks > 1 && range.parts > 1) {
      // If there are fewer parts than ranks, adjacent ranks have the same part.
      matrix.parts = range.parts, matrix.part = range.part;
      matrix.stride = ranks / range.parts * stride;
      matrix.cutsColumns = range.cutsColumns;
      (matrix.cutsColumns ? matrix.columns : matrix.rows) *= matrix.parts;
    }
    matrices.push_back(matrix);
  }
  return matrices;
}

/// A rank's part of a matrix whose Newton-Schulz steps are divided among ranks. The parts of a
/// shard lie one after the other, sorted by shape. So do the products of the parts with their
/// transposes.
struct MatrixPart {
  Matrix place; ///< in the block or shard, as if it were a whole matrix
  int64_t parts = 1;
  bool cutsColumns = false;
  int64_t at = 0, product = 0; ///< first element among the parts, and among their products

  int64_t rows() const { return cutsColumns ? place.rows : place.rows * parts; } ///< of the whole
  int64_t columns() const { return cutsColumns ? place.columns * parts : place.columns; }
  /// Whether the product is X·Xᵀ, of rows, and not Xᵀ·X: for a part, along the side that is not
  /// divided; for a whole matrix, along the short side.
  bool isOfRows() const { return parts > 1 ? cutsColumns : !place.isTransposed(); }
  int64_t side() const { return isOfRows() ? place.rows : place.columns; }
  auto shape() const { return std::tuple(place.rows, place.columns, parts, cutsColumns); }
};

/// The parts of those matrices that have rows in the shard.
inline std::vector<MatrixPart> partsOf(std::span<const ParamRange> all, OwnElements own) {
  std::vector<MatrixPart> parts;
  for (const Matrix &matrix : matricesOf(all))
    if (hasRowsOf(own, matrix))
      parts.push_back({matrix, matrix.range->parts, matrix.range->cutsColumns});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const MatrixPart &a, const MatrixPart &b) { return a.shape() < b.shape(); });
  int64_t at = 0, product = 0;
  for (MatrixPart &part : parts) {
    part.at = at, part.product = product;
    at += part.place.numel(), product += part.side() * part.side();
  }
  return parts;
}
/// The parts in operand `x` of muon_sums and muon_step.
inline std::vector<MatrixPart> partsOfSteps(const Call &call) {
  std::span<const ParamRange> all = rangesOfShard(call, 0);
  return partsOf(all, elementsAmong(rangesOfShard(call, 1), call.in[1].numel(), all));
}
/// The parts in operand `u` of a muon that is `divided`.
inline std::vector<MatrixPart> partsToUpdate(const Call &call) {
  return partsOf(rangesOfShard(call, 1), ownElements(call));
}

} // namespace shardc::kernels::host
