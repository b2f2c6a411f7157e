// The matrices of a shard that Muon updates, derived from the parameter table.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/host/Ranges.h"

namespace shardc::kernels::host {

/// The rows of a tensor that form one matrix: `take` rows, then rows of other matrices of the same
/// tensor, with the next `take` rows beginning `period` rows after the previous ones. Several
/// ranks' parts of a tensor may lie one after the other; each part has some of its rows, or of its
/// columns.
struct Matrix {
  int64_t begin = 0; ///< where the tensor begins in the shard, or in the first part
  int64_t rows = 0, columns = 0;
  int64_t take = 0, period = 0;
  /// The first `take` rows begin at row `first` of the tensor, and the matrix `skip` rows later.
  int64_t first = 0, skip = 0;
  int64_t tensorRows = 0;            ///< of a part of the tensor
  const ParamRange *range = nullptr; ///< a range of its tensor, for the settings of all of them
  int64_t columnParts = 1;           ///< number of parts with different columns
  int64_t part = 0;                  ///< index of this rank's part
  int64_t stride = 0;                ///< elements from one part to the next

  int64_t numel() const { return rows * columns; }
  int64_t partColumns() const { return columns / columnParts; }
  /// Index of the element at which a row begins, or the part of it with these columns.
  int64_t rowBegin(int64_t row, int64_t columnPart = 0) const {
    int64_t inTensor = first + (row + skip) / take * period + (row + skip) % take;
    return begin + (columnPart + inTensor / tensorRows) * stride +
           inTensor % tensorRows * partColumns();
  }
  /// The part that has this rank's columns.
  int64_t ownColumnPart() const { return columnParts > 1 ? part : 0; }
  /// Whether Newton-Schulz steps use the transposed matrix, so that their products have the extent
  /// of the short side.
  bool isTransposed() const { return rows > columns; }
  int64_t shortSide() const { return isTransposed() ? columns : rows; }
  int64_t longSide() const { return isTransposed() ? rows : columns; }
};

/// The ranges of one tensor as one range, and its number of rows in this rank's part.
struct TensorRows {
  const ParamRange *range = nullptr;
  int64_t rows = 0;
  /// Rows of interleaved matrices before they repeat; 0: the tensor is one matrix.
  int64_t period() const {
    return std::accumulate(range->turns, std::end(range->turns), 0LL,
                           [](int64_t sum, int32_t turn) { return sum + std::abs(turn); });
  }
  int64_t partsOfRows() const { return range->cutsColumns ? 1 : range->parts; }
};

/// Adjacent ranges of one tensor are one range, because parts of interleaved matrices are divided
/// among ranks one by one.
inline std::vector<TensorRows> tensorsOf(std::span<const ParamRange> ranges) {
  std::vector<TensorRows> tensors;
  for (size_t i = 0, next = 0; i < ranges.size(); i = next) {
    for (next = i + 1; next < ranges.size() && ranges[next].key == ranges[i].key &&
                       ranges[next].begin == ranges[next - 1].end;)
      ++next;
    int64_t row = std::max<int64_t>(ranges[i].row, 1);
    tensors.push_back({&ranges[i], (ranges[next - 1].end - ranges[i].begin) / row});
  }
  return tensors;
}

/// The rows of a tensor as one matrix.
inline Matrix matrixOf(const TensorRows &tensor) {
  Matrix matrix;
  matrix.begin = tensor.range->begin, matrix.columns = std::max<int64_t>(tensor.range->row, 1);
  matrix.rows = matrix.take = matrix.period = matrix.tensorRows = tensor.rows;
  matrix.range = tensor.range;
  return matrix;
}

/// The matrices of a tensor, with the rows that this rank has of them, or with those of all ranks
/// if `isWhole`. Ranks may have parts of a group of interleaved rows, so that one has no row of
/// some matrix.
template <typename Use> void eachMatrix(const TensorRows &tensor, bool isWhole, const Use &use) {
  const int64_t parts = tensor.partsOfRows(), period = tensor.period();
  Matrix matrix = matrixOf(tensor);
  if (period == 0) {
    if (isWhole)
      matrix.rows = matrix.take = matrix.period = tensor.rows * parts;
    return use(matrix);
  }
  const int64_t from = parts == 1 || isWhole ? 0 : tensor.range->part * tensor.rows;
  const int64_t to = isWhole ? tensor.rows * parts : from + tensor.rows;
  int64_t first = 0;
  for (int32_t turn : tensor.range->turns) {
    for (int64_t at = first; turn < 0 && at < tensor.rows * parts; at += period) {
      int64_t begin = std::clamp(at, from, to), end = std::clamp(at - turn, from, to);
      matrix.rows = end - begin, matrix.first = begin - from;
      matrix.take = matrix.period = -turn;
      use(matrix);
    }
    auto rowsBefore = [&](int64_t row) {
      return row / period * turn + std::clamp<int64_t>(row % period - first, 0, turn);
    };
    if (turn > 0) {
      const int64_t before = rowsBefore(from);
      matrix.rows = rowsBefore(to) - before;
      matrix.take = turn, matrix.period = period;
      matrix.first = first + before / turn * period - from, matrix.skip = before % turn;
      use(matrix);
    }
    first += std::abs(turn);
  }
}

/// The matrices with rows in these ranges, in their order.
inline std::vector<Matrix> matricesOf(std::span<const ParamRange> ranges) {
  std::vector<Matrix> matrices;
  for (const TensorRows &tensor : tensorsOf(ranges))
    eachMatrix(tensor, /*isWhole=*/false, [&](const Matrix &matrix) {
      if (matrix.rows > 0)
        matrices.push_back(matrix);
    });
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
inline bool hasRowsOf(OwnElements own, const TensorRows &tensor) {
  int64_t begin = tensor.range->begin;
  return own.begin < begin + tensor.rows * tensor.range->row && begin < own.end;
}

/// The matrices that a call updates: the whole matrices of the shard or, with `u`, all matrices of
/// tensors that have rows in the shard. In the second case, positions refer to `u`.
inline std::vector<Matrix> matricesToUpdate(const Call &call) {
  if (!hasWholeUpdates(call))
    return matricesOf(rangesOfShard(call, 0));
  OwnElements own = ownElements(call);
  int64_t ranks = call.attrs.tensor_parts, stride = call.in[kWholeUpdates].numel() / ranks;
  std::vector<Matrix> matrices;
  for (const TensorRows &tensor : tensorsOf(rangesOfShard(call, 1))) {
    if (!hasRowsOf(own, tensor))
      continue;
    const ParamRange &range = *tensor.range;
    const bool isJoined = ranks > 1 && range.parts > 1;
    eachMatrix(tensor, isJoined, [&](Matrix matrix) {
      if (isJoined) {
        // If there are fewer parts than ranks, adjacent ranks have the same part.
        matrix.part = range.part, matrix.stride = ranks / range.parts * stride;
        matrix.columnParts = range.cutsColumns ? range.parts : 1;
        matrix.columns *= matrix.columnParts;
      }
      if (matrix.rows > 0)
        matrices.push_back(matrix);
    });
  }
  return matrices;
}

/// A rank's part of a matrix whose Newton-Schulz steps are divided among ranks. The parts of a
/// shard lie one after the other, sorted by shape. So do the products of the parts with their
/// transposes.
struct MatrixPart {
  Matrix place; ///< in the block or shard, as if it were a whole matrix; it may have no rows
  int64_t parts = 1;
  bool cutsColumns = false;
  int64_t rows = 0;            ///< of the whole
  int64_t at = 0, product = 0; ///< first element among the parts, and among their products

  int64_t columns() const { return cutsColumns ? place.columns * parts : place.columns; }
  /// Whether the product is X·Xᵀ, of rows, and not Xᵀ·X: for a part, along the side that is not
  /// divided; for a whole matrix, along the short side.
  bool isOfRows() const { return parts > 1 ? cutsColumns : !place.isTransposed(); }
  int64_t side() const { return isOfRows() ? place.rows : place.columns; }
  /// The same on all ranks with parts of the matrix, so that their sums have one order.
  auto shape() const { return std::tuple(rows, place.columns, parts, cutsColumns); }
};

/// The parts of the matrices of those tensors that have rows in the shard.
inline std::vector<MatrixPart> partsOf(std::span<const ParamRange> all, OwnElements own) {
  std::vector<MatrixPart> parts;
  for (const TensorRows &tensor : tensorsOf(all)) {
    if (!hasRowsOf(own, tensor))
      continue;
    size_t at = parts.size();
    eachMatrix(tensor, /*isWhole=*/false, [&](const Matrix &matrix) {
      parts.push_back({matrix, tensor.range->parts, tensor.range->cutsColumns});
    });
    eachMatrix(tensor, /*isWhole=*/true,
               [&](const Matrix &matrix) { parts[at++].rows = matrix.rows; });
  }
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
