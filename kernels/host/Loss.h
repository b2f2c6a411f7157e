// Cross entropy of one row of fp32 logits, shared by the op on whole logits and the op that
// computes logits in chunks, so that both give the same numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// Number of valid columns of the whole vocabulary: valid_cols, or, if that is 0, all columns of
/// all members, which have `cols` each.
int64_t validCols(const Call &call, int64_t cols);

/// The columns of the vocabulary in a row of logits: all of them, or those of one member of a
/// group.
struct Columns {
  int64_t first, count;
  int64_t valid; ///< valid columns of the whole vocabulary

  explicit Columns(const Call &call, int64_t cols)
      : first(call.index * cols), count(cols), valid(validCols(call, cols)) {}

  /// Number of this rank's columns before the padding columns.
  int64_t validHere() const { return std::clamp<int64_t>(valid - first, 0, count); }
  bool isValid(int64_t label) const { return label >= 0 && label < valid; }
  bool has(int64_t label) const {
    return isValid(label) && label >= first && label - first < count;
  }
};

/// to = cap·tanh(logits/cap); `to` may be `logits`.
void capLogits(const float *logits, int64_t n, float cap, float *to);

/// Takes a buffer for a row of logits (operand 0) from the scratch, unless rows can be read in
/// place.
float *takeLogits(const Call &call, Scratch &scratch);
/// Returns a row of logits (operand 0) in fp32, with the call's soft cap applied: in `buffer`, from
/// takeLogits(), or in place.
const float *readLogits(const Call &call, int64_t row, float *buffer);

/// The maximum of the valid logits, and the fp64 sum of exp(logit - maximum).
struct Exponentials {
  float largest;
  double sum;
};
Exponentials exponentialsOfRow(const float *logits, int64_t valid);

/// log of the sum of exp(logits) over the valid columns; the sum is fp64.
float lseOfRow(const float *logits, int64_t valid);

/// mask·(lse - logits[label]). If the label is not a valid column, 0 if the mask is 0, and NaN
/// otherwise, so that bad data stop training.
float lossOfRow(const float *logits, int64_t valid, float lse, int32_t label, float mask);

/// The factor of the loss in gradients: loss_scale, times the loss scale of the step state if the
/// call has operand `state`.
float lossScale(const Call &call, int state);

/// The factor of (softmax - onehot): scale·mask, divided by max(n, 1) unless per_token.
float gradientFactor(const Attrs &attrs, float scale, float mask, float n);

/// d = factor·(softmax - onehot(label)), and 0 in padding columns. `d` may be `logits`. NaN if the
/// factor is not 0 and the label is not a valid column. With a soft cap, `logits` are capped, and d
/// is the gradient of the logits before the cap.
void gradientOfRow(const float *logits, const Columns &columns, float lse, int32_t label,
                   float factor, float cap, float *d);

/// Null, or the reason why valid_cols does not match logits with `cols` columns.
const char *checkColumns(const Call &call, int64_t cols);
/// The same for logits as operand 0.
const char *acceptsLogits(const Call &call);

} // namespace shardc::kernels::host
