// Copies and clears rows of slices, for attention over a part of the queries or keys.
#pragma once

#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

/// Clears `rows` rows from `first` on in each sample of x[B, S, ...].
void launchClearRows(const Tensor &x, int64_t first, int64_t rows, Queue &queue);

/// Copies softmax statistics f32[B, N, queries] of queries from `first` on into those of all
/// queries, lse[B, N, S]. With `fillsRest` the other entries become -inf.
void launchPutStatistics(const float *from, int64_t first, int64_t queries, const Tensor &lse,
                         bool fillsRest, Queue &queue);

/// Copies the statistics of `queries` queries from `first` on out of `lse`.
void launchTakeStatistics(const Tensor &lse, int64_t first, int64_t queries, float *to,
                          Queue &queue);

} // namespace shardc::kernels::cuda
