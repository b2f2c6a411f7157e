// Cross entropy of one row of fp32 logits. The op over whole logits and the op that computes them
// in chunks share it, so that both give the same numbers.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Columns that count: valid_cols, or all of `cols` if it is 0.
int64_t validCols(const Attrs &attrs, int64_t cols);

/// log of the sum of exp(logits) over the valid columns; the sum is fp64.
float lseOfRow(const float *logits, int64_t valid);

/// mask·(lse - logits[label]). A label outside of the valid columns counts 0 where the mask is 0
/// and gives NaN elsewhere, so that bad data stop the run.
float lossOfRow(const float *logits, int64_t valid, float lse, int32_t label, float mask);

/// Factor on (softmax - onehot): loss_scale·mask, divided by max(n, 1) unless per_token.
float gradientFactor(const Attrs &attrs, float mask, float n);

/// d = factor·(softmax - onehot(label)), 0 in the padded columns; `d` may be `logits`. NaN if the
/// factor is not 0 and the label is not a valid column.
void gradientOfRow(const float *logits, int64_t valid, int64_t cols, float lse, int32_t label,
                   float factor, float *d);

/// Null, or the reason why labels, mask and valid_cols do not match `rows` rows of `cols` logits.
const char *checkLabels(const Attrs &attrs, int64_t rows, int64_t cols, const Tensor &labels,
                        const Tensor &mask);

} // namespace shardc::kernels::host
