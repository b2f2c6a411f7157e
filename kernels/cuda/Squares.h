// Deterministic sums of squares in fp64: partial sums are added in a fixed order.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

inline constexpr int kSquareBlocksEach = 4; ///< for each multiprocessor
/// Number of partial sums that launchSquares() writes to scratch.
inline int squareBlocks(const Call &call) { return multiprocessorsOf(call) * kSquareBlocksEach; }

/// Enqueues ss = sum of squares of all elements of x (f32, bf16 or f16, aligned to 16 bytes)
/// on the queue of the call. `partials` is scratch of squareBlocks() numbers.
void launchSquares(const Call &call, const Tensor &x, double *partials, double *ss);

/// Enqueues ss = sum of `count` partial sums, divided by `copies` (ranks that hold the same
/// elements).
void launchAddSquares(const double *partials, int64_t count, double copies, double *ss,
                      Queue &queue);

} // namespace shardc::kernels::cuda
