// Cross entropy of rows of logits, as the ops over whole logits and over chunks of them launch it.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// Rows of logits and their inputs and outputs. Null if an op does not have one.
struct LossRows {
  Data logits, dlogits; ///< the gradient may take the logits' place
  const int32_t *labels;
  const float *mask, *n;
  const float *lseIn; ///< if given, the sum over the row is not computed again
  float *losses, *lse;
  int64_t rows, cols, valid;
  float lossScale;
  bool perToken, gradients;
};

/// One block per row. Writes losses and lse if requested, then dlogits if `gradients`.
void launchLossRows(const LossRows &rows, Mode mode, Queue &queue);

/// Columns that count: valid_cols, or all of `cols` if it is 0.
inline int64_t validCols(const Attrs &attrs, int64_t cols) {
  return attrs.valid_cols == 0 ? cols : attrs.valid_cols;
}

} // namespace shardc::kernels::cuda
