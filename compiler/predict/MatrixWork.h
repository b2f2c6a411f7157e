// Work of the matrix products in Muon's ops.
#pragma once

#include "runtime/plan/Matrices.h"

namespace shardc::predict {

/// Floating-point operations of one of Muon's ops on a matrix, on each rank that has rows of the
/// matrix. An iteration on an r × c matrix, r the shorter side, costs 2·r²·c for X·Xᵀ, 2·r³ for A²
/// and 2·r²·c for the product with X. If ranks divide the iterations, muon_sums has the product of
/// this rank's part with its transpose, and muon_step the rest; iteration 0 only normalises and
/// counts as 0.
inline double flopsOfMatrix(const plan::Op &op, const plan::BlockMatrix &matrix) {
  auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
  if (op.kind == plan::OpKind::Muon) {
    auto r = static_cast<double>(matrix.shortSide()), c = static_cast<double>(matrix.longSide());
    return op.getBool(plan::AttrKey::divided)
               ? 0
               : static_cast<double>(op.getInt(plan::AttrKey::ns_steps)) *
                     (4 * r * r * c + 2 * r * r * r);
  }
  auto side = static_cast<double>(matrix.sharedSide());
  double ofPart = 2 * side * rows * columns / static_cast<double>(matrix.parts);
  if (op.getInt(plan::AttrKey::ns_step) == 0)
    return 0;
  return op.kind == plan::OpKind::MuonSums ? ofPart : ofPart + 2 * side * side * side;
}

} // namespace shardc::predict
