// Cross entropy of rows of logits: what the kernels for whole logits and those for chunks of rows
// launch.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/host/Loss.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {

/// Rows of logits with their inputs and outputs. Pointers are null if an op does not have the
/// operand.
struct LossRows {
  Data logits, dlogits; ///< the gradient may take the logits' place
  const int32_t *labels;
  const float *mask, *n;
  const float *lseIn; ///< if given, used instead of summing over the row again
  float *losses, *lse;
  int64_t rows, cols;
  int64_t valid;             ///< number of columns that are not padding; they come first
  int64_t first, vocabulary; ///< vocabulary index of the first column, and size of the vocabulary
  float lossScale;
  float cap;              ///< soft cap of logits; 0: none
  const StepState *state; ///< if given, its loss scale is a factor too
  bool perToken, gradients;
};

/// Enqueues one block per row. Writes losses and lse if requested, then dlogits if `gradients`.
void launchLossRows(const LossRows &rows, Mode mode, Queue &queue);

/// Sets the fields that depend on the call's attributes: the range of the vocabulary that this
/// rank's columns cover (all of it, or one member's part) and the soft cap.
inline void setColumns(LossRows &rows, const Call &call, int64_t cols) {
  host::Columns columns(call, cols);
  rows.cols = cols, rows.valid = columns.validHere();
  rows.first = columns.first, rows.vocabulary = columns.valid;
  rows.cap = static_cast<float>(call.attrs.soft_cap);
}

} // namespace shardc::kernels::cuda
