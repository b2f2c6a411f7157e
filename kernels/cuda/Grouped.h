// Grouped matrix products, with one operand per expert: declarations that the tensor-core kernels
// and the plain kernel share. Row counts stay on the device. A small kernel first lists where
// groups begin and end, and the product kernels find their work in that list. Hence nothing waits
// for the host, and a captured graph can be replayed with other counts.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Launch.h"
#include "runtime/base/KernelPath.h"

namespace shardc::kernels::cuda {

namespace tiles {
/// Tile sizes of the tensor-core kernels: rows, and columns for 16-bit and 8-bit operands.
inline constexpr int kTileRows = 128, kColsOf16Bits = 256, kColsOf8Bits = 128;
/// Upper bound of the grid size: no GPU with these tensor cores has more SMs.
inline constexpr int kBlocksMax = 144;
/// Warps per block that multiply; each writes a partial sum of squares.
inline constexpr int kWarpsThatMultiply = 8;
} // namespace tiles

/// Rows of a work item of the plain kernel.
inline constexpr int kPlainRows = 64;
/// Rows of a work item of the kernel by mma.sync.
inline constexpr int kMmaRows = 128;

struct Grouped;

/// The groups of all slots, in order. The arrays are in the call's device workspace.
struct GroupList {
  int32_t *begins, *ends; ///< first row and end of each group
  int32_t *firstItems;    ///< first work item of each group, then the total
  int64_t *rowsBefore;    ///< scratch of the kernel that builds the list

  GroupList() = default;
  GroupList(const Call &call, Scratch &scratch);
  /// Enqueues the kernel that builds the list. A work item is a pair of tiles with up to `tileCols`
  /// columns each, or, if `tileCols` is 0, a block of up to `itemRows` rows.
  void fill(const Call &call, const Grouped &grouped, int tileCols,
            int itemRows = kPlainRows) const;
};

/// One call: c[r,:] = a[r,:]·op(b[e]), or dw[e] (+)= sum over rows of a[r,:]ᵀ·b[r,:].
struct Grouped {
  Tensor a, b, c;
  int64_t slots, groups; ///< slots; groups in each slot
  int64_t rows;          ///< row capacity of all slots together
  int64_t k, m;          ///< extents of a product [rows, k]·[k, m], or of a gradient [k, m]
  bool isGradient, transB;
  KernelPath path;
  int32_t multiprocessors; ///< SMs that it may use; 0: all
  /// Partial sums of squares of a gradient, in the workspace; null if not requested.
  double *squares = nullptr;
  /// For grouped_matmul_bias: a bias per group, and optional row weights.
  const Tensor *bias = nullptr, *weights = nullptr;

  Grouped(const Call &call, bool isGradient);
  int64_t allGroups() const { return slots * groups; }
};

/// The path of a call on the GPU of its context.
KernelPath groupedPathOf(const Call &call);
/// The version of PTX times 10 from which the device's code of the tensor-core kernels comes; 0: it
/// has none.
int groupedTilesCode();

/// Whether the tensor-core kernel runs the call: it takes that path, and its operands begin at 16
/// bytes.
bool hasTiles(const Grouped &call);

/// Enqueues the call. If sums of squares are requested, returns the number of partial sums that the
/// kernel writes. Reports a failed launch to the queue.
int64_t launchTiles(const Grouped &call, const GroupList &list, Queue &queue);

/// Enqueues y[r,:] = x[r,:] + bias[e,:] (·weights[r]) for each row r of each group e. y may be x.
void launchBiases(const Tensor &x, const Tensor &bias, const Tensor &counts, const Tensor *weights,
                  const Tensor &y, Queue &queue);

/// Whether the kernel by mma.sync runs the call: it takes that path, and its operands begin at 16
/// bytes.
bool hasMma(const Grouped &call);
/// Enqueues the call, without squares and biases.
void launchMma(const Grouped &call, const GroupList &list, Queue &queue);

/// Which elements of an 8-bit operand share a scale.
enum class Scaling : uint8_t {
  Group,   ///< one for a group of rows, or for a group's matrix
  Rows128, ///< f32[depth/128, rows]
  Rows32,  ///< e8m0[depth/32, rows]
  Squares, ///< f32[matrix, rows of it/128, depth/128]
};

/// An 8-bit operand in the workspace: codes[rows, depth], contiguous along the contracted
/// dimension. For a product, `rows` counts the rows of all groups or of all matrices. For a
/// gradient, `rows` are the columns of the call's operand, and `depth` are the operand's rows,
/// sorted by group: each group begins at a multiple of kDepthBlock and is padded with zeros.
struct Factor8 {
  uint8_t *codes;
  void *scales;
  int64_t rows, depth; ///< depth is a multiple of kDepthBlock
  Scaling scaling;
  bool isE5M2;
};
inline constexpr int kDepthBlock = 128;

/// A call with 8-bit operands. For a gradient, `list` has a single slot, with groups along `depth`.
struct Grouped8 {
  Grouped call;
  Factor8 a, b;
  GroupList list;
};

bool hasTiles(const Grouped8 &call);
void launchTiles(const Grouped8 &call, Queue &queue);

/// Executes grouped_matmul, grouped_matmul_scaled or the gradient with 8-bit operands: quantises
/// the operands, unless they are stored in 8 bits.
void runFloat8(const Call &call, bool isGradient);
/// Workspace of that call in bytes.
size_t workspaceOfFloat8(const Call &call, bool isGradient);

} // namespace shardc::kernels::cuda
