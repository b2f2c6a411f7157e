// Cross entropy of one row of fp32 logits. The op over whole logits and the op that computes them
// in chunks share it, so that both give the same numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// Columns of the whole vocabulary that count, of whose members each has `cols`: valid_cols, or all
/// if it is 0.
int64_t validCols(const Call &call, int64_t cols);

/// The columns of the vocabulary that a row of logits has: all, or those of one member of a group.
struct Columns {
  int64_t first, count;
  int64_t valid; ///< of the whole vocabulary

  explicit Columns(const Call &call, int64_t cols)
      : first(call.index * cols), count(cols), valid(validCols(call, cols)) {}

  /// Number of this rank's columns that are not padding; they come first.
  int64_t validHere() const { return std::clamp<int64_t>(valid - first, 0, count); }
  bool isValid(int64_t label) const { return label >= 0 && label < valid; }
  bool has(int64_t label) const {
    return isValid(label) && label >= first && label - first < count;
  }
};

/// to = cap·tanh(logits/cap); `to` may be `logits`.
void capLogits(const float *logits, int64_t n, float cap, float *to);

/// Room for a row of operand 0, the logits, where it is not read in place.
float *takeLogits(const Call &call, Scratch &scratch);
/// A row of operand 0 in fp32, with the soft cap of the call; in `buffer`, which takeLogits gave,
/// or in place.
const float *readLogits(const Call &call, int64_t row, float *buffer);

/// The largest of the valid logits, and the sum of exp(logit - largest), which is fp64.
struct Exponentials {
  float largest;
  double sum;
};
Exponentials exponentialsOfRow(const float *logits, int64_t valid);

/// log of the sum of exp(logits) over the valid columns; the sum is fp64.
float lseOfRow(const float *logits, int64_t valid);

/// mask·(lse - logits[label]). A label outside of the valid columns counts 0 where the mask is 0
/// and gives NaN elsewhere, so that bad data stop the run.
float lossOfRow(const float *logits, int64_t valid, float lse, int32_t label, float mask);

/// Factor with which a loss' gradient starts: loss_scale, times the loss scale of the step state if
/// the call has operand `state`.
float lossScale(const Call &call, int state);

/// Null, or the reason why operand `state`, if there is one, is no step state.
const char *checkScaleState(const Call &call, int state);

/// Factor on (softmax - onehot): scale·mask, divided by max(n, 1) unless per_token.
float gradientFactor(const Attrs &attrs, float scale, float mask, float n);

/// d = factor·(softmax - onehot(label)), 0 in the padded columns; `d` may be `logits`. NaN if the
/// factor is not 0 and the label is not a valid column. With a cap, logits are those that have it,
/// and d is the gradient of those without.
void gradientOfRow(const float *logits, const Columns &columns, float lse, int32_t label,
                   float factor, float cap, float *d);

/// Null, or the reason why labels and valid_cols do not match `rows` rows of `cols` logits.
const char *checkColumns(const Call &call, int64_t rows, int64_t cols, const Tensor &labels);
/// The same, and why the mask does not.
const char *checkLabels(const Call &call, int64_t rows, int64_t cols, const Tensor &labels,
                        const Tensor &mask);

} // namespace shardc::kernels::host
