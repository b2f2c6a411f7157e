// Cross entropy of rows of logits, for the kernels of whole logits and of chunks of rows.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/host/Loss.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {

/// Rows of logits, and the inputs and outputs of their losses. A pointer is null if the op lacks
/// that operand.
struct LossRows {
  Data logits, dlogits; ///< dlogits may share memory with logits
  const int32_t *labels;
  const float *mask, *n;
  const float *lseIn; ///< if given, the kernel does not sum the row again
  float *losses, *lse;
  int64_t rows, cols;
  int64_t valid;             ///< number of columns before the padding columns
  int64_t first, vocabulary; ///< vocabulary index of the first column, and size of the vocabulary
  float lossScale;
  float cap;              ///< soft cap of logits; 0: none
  const StepState *state; ///< if given, its loss scale is another factor
  bool perToken, gradients;
};

/// Enqueues one block per row. Writes losses and lse if requested, then dlogits if `gradients`.
void launchLossRows(const LossRows &rows, Mode mode, Queue &queue);

/// Sets the fields that depend on the call's attributes: the soft cap, and the range of the
/// vocabulary that the columns cover (the whole vocabulary, or one member's part of it).
inline void setColumns(LossRows &rows, const Call &call, int64_t cols) {
  host::Columns columns(call, cols);
  rows.cols = cols, rows.valid = columns.validHere();
  rows.first = columns.first, rows.vocabulary = columns.valid;
  rows.cap = static_cast<float>(call.attrs.soft_cap);
}

} // namespace shardc::kernels::cuda
