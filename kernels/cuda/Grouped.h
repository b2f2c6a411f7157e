// Products with a factor for each run of rows: what their two kernels share. Counts stay on the
// device. A small kernel first lists where runs begin and end; the kernels of products find their
// work in this list, so nothing waits for the host, and graphs can be replayed with other counts.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

namespace tiles {
/// Of the kernels on tensor cores: rows of a tile, and its columns by the size of factors.
inline constexpr int kTileRows = 128, kColsOf16Bits = 256, kColsOf8Bits = 128;
/// Of the launches: no GPU with these tensor cores has more multiprocessors.
inline constexpr int kBlocksMax = 144;
/// Warps of a block that multiply, each of which leaves a partial sum of squares.
inline constexpr int kWarpsThatMultiply = 8;
} // namespace tiles

struct Grouped;

/// Runs of all slots, one behind the other; in device memory, of the call's scratch.
struct RunList {
  int32_t *begins, *ends; ///< rows of each run
  int32_t *firstItems;    ///< the first of each run's pieces of work, and the number of all
  int64_t *rowsBefore;    ///< scratch of the kernel that makes the list

  RunList() = default;
  RunList(const Call &call, Scratch &scratch);
  /// Enqueues the kernel that makes the list; pieces of work are pairs of tiles with so many
  /// columns, or, with 0, rows of the plain kernel.
  void fill(const Call &call, const Grouped &grouped, int tileCols) const;
};

/// One call: c[r,:] = a[r,:]·op(b[e]), or dw[e] (+)= sum over rows of a[r,:]ᵀ·b[r,:].
struct Grouped {
  Tensor a, b, c;
  int64_t slots, runs; ///< of a slot
  int64_t rows;        ///< that there is room for, in all slots together
  int64_t k, m;        ///< of a product [rows, k]·[k, m], or of a gradient [k, m]
  bool isGradient, transB;
  int32_t multiprocessors; ///< the number that it may use; 0: all
  /// Of a gradient whose squares are summed: partial sums, in scratch; else null.
  double *squares = nullptr;
  /// Of grouped_matmul_bias: one for each run, and the weights of rows, if there are any.
  const Tensor *bias = nullptr, *weights = nullptr;

  Grouped(const Call &call, bool isGradient);
  int64_t allRuns() const { return slots * runs; }
};

/// Whether the kernel on tensor cores computes the call: on Hopper, with factors of one type of 16
/// bits and a result and biases of that type, or f32 for a gradient, and rows of whole 16 bytes.
bool hasTiles(const Grouped &call);

/// Enqueues it. A launch that fails is reported to the queue. Returns the number of partial sums of
/// squares that it leaves, if the call has a place for them.
int64_t launchTiles(const Grouped &call, const RunList &list, Queue &queue);

/// Enqueues y[r,:] = x[r,:] + bias[e,:] (·weights[r]) of each row r of run e; y may be x.
void launchBiases(const Tensor &x, const Tensor &bias, const Tensor &counts, const Tensor *weights,
                  const Tensor &y, Queue &queue);

/// Rows of a piece of work of the plain kernel.
inline constexpr int kPlainRows = 64;

/// Of a factor in 8 bits: which numbers have a scale in common.
enum class Scaling : uint8_t {
  Run,     ///< f32[run]: all of a run, or of its matrix
  Rows128, ///< f32[depth/128, rows]
  Rows32,  ///< e8m0[depth/32, rows]
  Squares, ///< f32[matrix, rows of it/128, depth/128]
};

/// A factor in 8 bits, in scratch: codes[rows, depth], what a sum takes one behind the other. Rows
/// are those of runs, or of all matrices; of a gradient, columns of the call's factor, and depth
/// its rows by run, each run from a multiple of kDepthBlock on, zeros behind its rows.
struct Factor8 {
  uint8_t *codes;
  void *scales;
  int64_t rows, depth; ///< depth: a multiple of kDepthBlock
  Scaling scaling;
  bool isE5M2;
};
inline constexpr int kDepthBlock = 128;

/// A call with factors in 8 bits. For a gradient, `list` has a single slot: runs in `depth`.
struct Grouped8 {
  Grouped call;
  Factor8 a, b;
  RunList list;
};

/// Whether the kernel on tensor cores computes it: on Hopper, with scales of runs or of 128
/// numbers, and rows of results of whole 16 bytes.
bool hasTiles(const Grouped8 &call);
void launchTiles(const Grouped8 &call, Queue &queue);

/// grouped_matmul, grouped_matmul_scaled, or the gradient, with factors that are brought to 8 bits
/// first, or have them.
void runFloat8(const Call &call, bool isGradient);
/// Bytes of scratch of it.
size_t workspaceOfFloat8(const Call &call, bool isGradient);

} // namespace shardc::kernels::cuda
