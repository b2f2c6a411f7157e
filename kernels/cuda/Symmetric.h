// Products of matrices with their own transposes, for Muon: only tiles up to the diagonal are
// computed, and written to both of their places. Matrices of several shapes are one launch, because
// the tiles of a few matrices do not fill a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/Launch.h"
#include "runtime/base/KernelPath.h"

namespace shardc::kernels::cuda {

/// Consecutive bf16 matrices of one shape: x[matrices, side, depth], or x[matrices, depth, side] if
/// `isAcross`. The results are c[matrices, side, side].
struct SymmetricGroup {
  const void *x;
  void *c;
  int64_t side, depth, matrices;
  bool isAcross;
};

/// The version of PTX times 10 from which the device's code comes; 0: it has none.
int symmetricTilesCode();

/// The path of products of such matrices on the queue's device.
KernelPath symmetricPathOf(int64_t side, int64_t depth, const Queue &queue);

/// Whether the products of these matrices take the path of this kernel on the queue's device, and
/// begin at 16 bytes.
bool hasSymmetricTiles(const SymmetricGroup &group, const Queue &queue);

/// Whether the kernel takes less time than whole products by the library, one launch per group.
/// Tiles up to the diagonal are about half of a product, but the kernel writes results while it
/// does not multiply, and a few tiles do not fill a GPU.
bool areTilesFaster(std::span<const SymmetricGroup> groups, int32_t multiprocessors);

/// Enqueues c = alpha·x·xᵀ + beta·x of all groups, or xᵀ·x of those that are across. Unless beta is
/// 0, each x is symmetric and not across. If beta is 0, alpha is 1. `multiprocessors`: SMs that it
/// may use; 0: all.
void launchSymmetric(std::span<const SymmetricGroup> groups, float alpha, float beta,
                     int32_t multiprocessors, Queue &queue);

} // namespace shardc::kernels::cuda
