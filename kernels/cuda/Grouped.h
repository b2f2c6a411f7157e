// Products with a factor for each run of rows: what their two kernels share. Counts stay on the
// device. A small kernel first lists where runs begin and end; the kernels of products find their
// work in this list, so nothing waits for the host, and graphs can be replayed with other counts.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

/// Rows and columns of a tile of the kernel on tensor cores.
inline constexpr int kTileRows = 128, kTileCols = 256;

/// Runs of all slots, one behind the other; in device memory, of the call's scratch.
struct RunList {
  int32_t *begins, *ends; ///< rows of each run
  int32_t *firstItems;    ///< the first of each run's pieces of work, and the number of all
  int64_t *rowsBefore;    ///< scratch of the kernel that makes the list
};

/// One call: c[r,:] = a[r,:]·op(b[e]), or dw[e] (+)= sum over rows of a[r,:]ᵀ·b[r,:].
struct Grouped {
  Tensor a, b, c;
  int64_t slots, runs; ///< of a slot
  int64_t rows;        ///< that there is room for, in all slots together
  int64_t k, m;        ///< of a product [rows, k]·[k, m], or of a gradient [k, m]
  bool isGradient, transB;
  int32_t multiprocessors; ///< the number that it may use; 0: all

  int64_t allRuns() const { return slots * runs; }
};

/// Whether the kernel on tensor cores computes the call: on Hopper, with factors of one type of 16
/// bits and a result of that type, or f32 for a gradient, and rows of whole 16 bytes.
bool hasTiles(const Grouped &call);

/// Enqueues it. A launch that fails is reported to the queue.
void launchTiles(const Grouped &call, const RunList &list, Queue &queue);

/// Rows of a piece of work of the plain kernel.
inline constexpr int kPlainRows = 64;

} // namespace shardc::kernels::cuda
