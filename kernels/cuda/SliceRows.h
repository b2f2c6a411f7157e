// Rows of slices that an attention over some of the queries or keys leaves out.
#pragma once

#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

/// Clears `rows` rows from `first` on in each sample of x[B, S, ...].
void launchClearRows(const Tensor &x, int64_t first, int64_t rows, Queue &queue);

/// Statistics of queries from `first` on, f32[B, N, queries], among those of all queries, lse[B, N,
/// S]; `fillsRest`: the others become -inf.
void launchPutStatistics(const float *from, int64_t first, int64_t queries, const Tensor &lse,
                         bool fillsRest, Queue &queue);

/// The other way around.
void launchTakeStatistics(const Tensor &lse, int64_t first, int64_t queries, float *to,
                          Queue &queue);

} // namespace shardc::kernels::cuda
