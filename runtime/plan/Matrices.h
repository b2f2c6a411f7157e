// The matrices of a block, which optimizers like Muon update whole: what the verifier, predictions
// and the update agree on. kernels/host/Matrices.h lists those of a kernel's shard.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// A matrix of a parameter, or of one of the tensors that a parameter stacks. If a tensor's rows
/// belong to several matrices alternately, each of these has the elements of all rows.
struct BlockMatrix {
  const Param *param = nullptr;
  int64_t begin = 0, end = 0;    ///< elements of the block that the tensor has on this rank
  int64_t rows = 0, columns = 0; ///< on all ranks that have parts of it together
  int64_t parts = 1;             ///< these ranks
  bool cutsColumns = false;      ///< which have columns of it, and not rows

  /// Elements of all matrices of its tensor.
  int64_t tensorNumel() const { return (end - begin) * parts; }
  int64_t shortSide() const { return std::min(rows, columns); }
  int64_t longSide() const { return std::max(rows, columns); }
  /// The rows of the product of the matrix with its transpose to which each of several ranks adds
  /// what its part makes: the side that they do not divide.
  int64_t sharedSide() const { return parts == 1 ? shortSide() : cutsColumns ? rows : columns; }
  /// Whether parts of so many elements, into which the block is cut, cut the tensor.
  bool isCutBy(int64_t part) const { return begin / part != (end - 1) / part; }
};

/// The matrices of each parameter with rows and columns: the whole ones over all ranks if
/// `isJoined`, otherwise this rank's parts.
std::vector<BlockMatrix> matricesOf(const Plan &plan, int32_t block, bool isJoined);

/// The group of tensor-parallel ranks that have parts of matrices of the block; -1 if each rank has
/// them whole.
int16_t groupOfMatrixParts(const Plan &plan, int32_t block);

/// Whether matrices of the block are updated with the parts of other tensor-parallel ranks.
inline bool joinsMatrixParts(const Plan &plan, int32_t block) {
  return plan.job.optimizer.muonTpMode != Job::MuonTpMode::Blockwise &&
         groupOfMatrixParts(plan, block) >= 0;
}

/// Whether these ranks divide the Newton-Schulz steps of matrices, instead of gathering their
/// parts.
inline bool dividesSteps(const Plan &plan, int32_t block) {
  return plan.job.optimizer.muonTpMode == Job::MuonTpMode::Distributed &&
         groupOfMatrixParts(plan, block) >= 0;
}

/// What muon_sums makes of a shard of the block, which has rows of some matrices: the most on any
/// rank, and 1 at least.
struct MatrixSums {
  int64_t matrices = 1; ///< squares: one of each
  int64_t products = 1; ///< elements of the products of each with its transpose, together
  int64_t largest = 1;  ///< elements of the largest product, or of the largest part of a matrix
};
MatrixSums matrixSumsOf(const Plan &plan, int32_t block);

} // namespace shardc::plan
