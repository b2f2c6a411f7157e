// The matrices of a block. Optimizers such as Muon update whole matrices; predictions and the
// update share this list. kernels/host/Matrices.h lists the matrices of a kernel's shard, and
// runtime/verify/spec/Matrices.cpp finds those of the model.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// A matrix of a parameter, or of one tensor of a stacked parameter. If the rows of a tensor
/// alternate between several matrices, `begin` and `end` of each of them span the whole tensor.
struct BlockMatrix {
  const Param *param = nullptr;
  int64_t begin = 0, end = 0; ///< this rank's elements of the tensor, as indices in the block
  /// Extents of the whole matrix, over all ranks that have parts of it.
  int64_t rows = 0, columns = 0;
  int64_t parts = 1;        ///< number of these ranks
  bool cutsColumns = false; ///< whether the ranks divide the columns instead of the rows

  /// Elements of the whole tensor, with all of its matrices.
  int64_t tensorNumel() const { return (end - begin) * parts; }
  int64_t shortSide() const { return std::min(rows, columns); }
  int64_t longSide() const { return std::max(rows, columns); }
  /// Side length of the product of the matrix with its transpose, as ranks compute it: the side
  /// that they do not divide, because each rank then adds the contribution of its part.
  int64_t sharedSide() const { return parts == 1 ? shortSide() : cutsColumns ? rows : columns; }
  /// Whether shards of `part` elements of the block split the tensor.
  bool isCutBy(int64_t part) const { return begin / part != (end - 1) / part; }
};

/// The matrices of all two-dimensional parameters of the block (apart from the dimension of a
/// stack): whole ones, joined over ranks, if `isJoined`; otherwise this rank's parts.
std::vector<BlockMatrix> matricesOf(const Plan &plan, int32_t block, bool isJoined);

/// The group of tensor-parallel ranks that have parts of the block's matrices; -1 if each rank has
/// whole matrices.
int16_t groupOfMatrixParts(const Plan &plan, int32_t block);

/// Whether an update of the block's matrices uses the parts of other tensor-parallel ranks.
inline bool joinsMatrixParts(const Plan &plan, int32_t block) {
  return plan.job.optimizer.muonTpMode != Job::MuonTpMode::Blockwise &&
         groupOfMatrixParts(plan, block) >= 0;
}

/// Whether these ranks divide the Newton-Schulz iterations among them instead of gathering their
/// parts.
inline bool dividesSteps(const Plan &plan, int32_t block) {
  return plan.job.optimizer.muonTpMode == Job::MuonTpMode::Distributed &&
         groupOfMatrixParts(plan, block) >= 0;
}

/// Sizes of the results of muon_sums for a shard of the block, which contains rows of some
/// matrices. Each is the maximum over all ranks, and at least 1.
struct MatrixSums {
  int64_t matrices = 1; ///< sums of squares: one per matrix
  int64_t products = 1; ///< elements of the products of all matrices with their transposes
  int64_t largest = 1;  ///< elements of the largest product, or of the largest part of a matrix
};
MatrixSums matrixSumsOf(const Plan &plan, int32_t block);

} // namespace shardc::plan
