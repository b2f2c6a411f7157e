// Sums of squares in fp64, deterministic: what kernels leave as partial sums is added in order.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

inline constexpr int kSquareBlocksEach = 4; ///< for each multiprocessor
/// Partial sums that launchSquares leaves in scratch.
inline constexpr int kSquareBlocks = 132 * kSquareBlocksEach;

/// Enqueues ss = the sum of the squares of all elements of x, of f32, bf16 or f16, which begins at
/// a multiple of 16 bytes.
void launchSquares(const Tensor &x, double *partials, double *ss, Queue &queue);

/// Enqueues ss = the sum of so many partial sums, divided by `copies`.
void launchAddSquares(const double *partials, int64_t count, double copies, double *ss,
                      Queue &queue);

} // namespace shardc::kernels::cuda
