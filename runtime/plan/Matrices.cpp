#include "runtime/plan/Matrices.h"

#include <cstdlib>
#include <map>

namespace shardc::plan {
namespace {

/// The split of the rows or columns; null if this rank has all of both.
const Split *splitOf(const Param &param) {
  for (const Split &split : param.splits)
    if (split.dim >= param.rowDim())
      return &split;
  return nullptr;
}

} // namespace

/// A parameter of rank 3 is a stack of matrices. One whose rows interleave several matrices
/// (`turns`) gives one entry for each of them. With `isJoined`, sizes are those of the whole
/// matrices, which tensor-parallel ranks divide; otherwise they are the largest that a rank has.
std::vector<BlockMatrix> matricesOf(const Plan &plan, int32_t block, bool isJoined) {
  std::vector<BlockMatrix> matrices;
  for (const Param &param : plan.params) {
    const uint8_t first = param.rowDim();
    const int64_t numel = param.type.numel();
    if (param.block != block || param.type.rank != first + 2 || numel <= 0)
      continue;
    const Split *split = splitOf(param);
    const int64_t ranks = split != nullptr ? plan.groupSize(split->group) : 1;
    const bool cutsRows = ranks > 1 && split->dim == first;
    const int64_t rows = param.type.shape[first], columns = param.type.shape[first + 1];
    const auto count = static_cast<int64_t>(param.turns.size());
    auto rowsOf = [&](int64_t turn) { return turn == 0 ? rows / count : std::abs(turn); };
    int64_t period = 0;
    for (int64_t turn : param.turns)
      period += rowsOf(turn);
    const int64_t parts = isJoined ? ranks : 1, wholeRows = cutsRows ? rows * ranks : rows;
    for (int64_t at = 0; at < numel; at += rows * columns) {
      auto add = [&](int64_t ofWhole, int64_t own) {
        int64_t begin = param.offset + at;
        matrices.push_back({&param, begin, begin + rows * columns, isJoined ? ofWhole : own,
                            cutsRows ? columns : columns * parts, parts, parts > 1 && !cutsRows});
      };
      if (period == 0)
        add(wholeRows, rows);
      for (int64_t turn : param.turns) {
        int64_t ofWhole = wholeRows / period * rowsOf(turn);
        if (turn >= 0)
          add(ofWhole, rows % period == 0 ? rows / period * rowsOf(turn) : std::min(rows, ofWhole));
        for (int64_t i = 0; turn < 0 && i < (isJoined ? wholeRows : rows + period - 1) / period;
             ++i)
          add(-turn, -turn);
      }
    }
  }
  return matrices;
}

int16_t groupOfMatrixParts(const Plan &plan, int32_t block) {
  for (const Param &param : plan.params)
    if (param.block == block && splitOf(param) != nullptr)
      return groupOfKind(plan, param.isStacked() ? GroupKind::ExpertTensor : GroupKind::Tensor);
  return -1;
}

/// A matrix counts in every shard that has a part of it. The result has the largest sums of any
/// shard.
MatrixSums matrixSumsOf(const Plan &plan, int32_t block) {
  const int64_t part = std::max<int64_t>(plan.blocks[static_cast<size_t>(block)].stateShard, 1);
  std::map<int64_t, MatrixSums> byShard;
  MatrixSums most;
  for (const BlockMatrix &matrix : matricesOf(plan, block, /*isJoined=*/true)) {
    const int64_t product = matrix.sharedSide() * matrix.sharedSide();
    most.largest = std::max({most.largest, product, matrix.end - matrix.begin});
    for (int64_t shard = matrix.begin / part; shard <= (matrix.end - 1) / part; ++shard) {
      MatrixSums &sums = byShard.try_emplace(shard, MatrixSums{0, 0, 0}).first->second;
      sums.matrices += 1;
      sums.products += product;
    }
  }
  for (const auto &[shard, sums] : byShard) {
    most.matrices = std::max(most.matrices, sums.matrices);
    most.products = std::max(most.products, sums.products);
  }
  return most;
}

} // namespace shardc::plan
