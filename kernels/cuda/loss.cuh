// Cross entropy of rows of logits, as the ops over whole logits and over chunks of them launch it.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/host/Loss.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {

/// Rows of logits and their inputs and outputs. Null if an op does not have one.
struct LossRows {
  Data logits, dlogits; ///< the gradient may take the logits' place
  const int32_t *labels;
  const float *mask, *n;
  const float *lseIn; ///< if given, the sum over the row is not computed again
  float *losses, *lse;
  int64_t rows, cols;
  int64_t valid;             ///< columns here that count, the first ones
  int64_t first, vocabulary; ///< the column of the vocabulary here first, and all that count
  float lossScale;
  float cap;              ///< soft cap of logits; 0: none
  const StepState *state; ///< if given, its loss scale is a factor too
  bool perToken, gradients;
};

/// One block per row. Writes losses and lse if requested, then dlogits if `gradients`.
void launchLossRows(const LossRows &rows, Mode mode, Queue &queue);

/// Sets the columns of rows of this rank's logits, all or those of one member of a group, and the
/// soft cap.
inline void setColumns(LossRows &rows, const Call &call, int64_t cols) {
  host::Columns columns(call, cols);
  rows.cols = cols, rows.valid = columns.validHere();
  rows.first = columns.first, rows.vocabulary = columns.valid;
  rows.cap = static_cast<float>(call.attrs.soft_cap);
}

} // namespace shardc::kernels::cuda
