// The matrices of a shard that Muon updates, from the parameter table's rows.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/host/Ranges.h"

namespace shardc::kernels::host {

/// Rows of a shard that are one matrix: `take` rows, then others of the same tensor, over and over;
/// `period` is from the first of them to the next first one. Several parts of it, of other ranks,
/// may lie one after the other: each has some of its rows, or of its columns.
struct Matrix {
  int64_t begin = 0; ///< element of the shard, or of the first part
  int64_t rows = 0, columns = 0;
  int64_t take = 0, period = 0;
  const ParamRange *range = nullptr; ///< one of its tensor, for what they have in common
  int64_t parts = 1, part = 0;       ///< part: this rank's one
  int64_t stride = 0;                ///< elements from one part to the next
  bool cutsColumns = false;

  int64_t numel() const { return rows * columns; }
  int64_t partRows() const { return cutsColumns ? rows : rows / parts; }
  int64_t partColumns() const { return cutsColumns ? columns / parts : columns; }
  /// The element of a part at which its row begins.
  int64_t rowBegin(int64_t row) const {
    return begin + (row / take * period + row % take) * partColumns();
  }
  /// The row of the matrix that is row `row` of part `ofPart`.
  int64_t wholeRow(int64_t ofPart, int64_t row) const {
    return cutsColumns ? row : ofPart * partRows() + row;
  }
  int64_t wholeColumn(int64_t ofPart) const { return cutsColumns ? ofPart * partColumns() : 0; }
  /// The products of Newton-Schulz steps are of this extent: the matrix is transposed if there
  /// are more of them.
  bool isTransposed() const { return rows > columns; }
  int64_t shortSide() const { return isTransposed() ? columns : rows; }
  int64_t longSide() const { return isTransposed() ? rows : columns; }
};

/// In the order of the ranges. Ranges of one tensor that follow each other are one: its parts are
/// cut among ranks one by one. `isSplit`: rows in turn are of several matrices.
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
      period += turn;
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
      first += turn;
    }
  }
  return matrices;
}

/// The operand with the updates of whole matrices, of several ranks' parts one after the other.
inline constexpr int kWholeUpdates = 4;
inline bool hasWholeUpdates(const Call &call) { return call.inCount > kWholeUpdates; }

/// The elements of operand `u` that are the shard's, in the place of this rank's part.
struct OwnElements {
  int64_t begin = 0, end = 0;
};
/// Where the `numel` elements of a shard with ranges `own` are among those with ranges `all`.
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

/// The matrices that a call updates: those of the shard, or with `u` those of which the shard has
/// rows. The latter begin in `u`.
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

/// A rank's part of a matrix of which ranks take the Newton-Schulz steps together. The parts of a
/// shard lie one after the other, those of one shape side by side; so do the products of each with
/// its transpose.
struct MatrixPart {
  Matrix place; ///< in the block or shard, as a matrix of its own
  int64_t parts = 1;
  bool cutsColumns = false;
  int64_t at = 0, product = 0; ///< the first element among parts, and among products

  int64_t rows() const { return cutsColumns ? place.rows : place.rows * parts; } ///< of the whole
  int64_t columns() const { return cutsColumns ? place.columns * parts : place.columns; }
  /// Whether the product with the transpose is of rows, and not of columns: of the side that is
  /// whole, or of a whole matrix of the short one.
  bool isOfRows() const { return parts > 1 ? cutsColumns : !place.isTransposed(); }
  int64_t side() const { return isOfRows() ? place.rows : place.columns; }
  auto shape() const { return std::tuple(place.rows, place.columns, parts, cutsColumns); }
};

/// Of the matrices of which the shard has rows.
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
/// Of operand `x` of muon_sums and muon_step.
inline std::vector<MatrixPart> partsOfSteps(const Call &call) {
  std::span<const ParamRange> all = rangesOfShard(call, 0);
  return partsOf(all, elementsAmong(rangesOfShard(call, 1), call.in[1].numel(), all));
}
/// Of operand `u` of a muon that is `divided`.
inline std::vector<MatrixPart> partsToUpdate(const Call &call) {
  return partsOf(rangesOfShard(call, 1), ownElements(call));
}

} // namespace shardc::kernels::host
