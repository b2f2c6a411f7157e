// Grouped matrix products; a[n,k], c[n,m], and b[E,k,m], or [E,m,k] with trans_b. Row r belongs to
// group e.
//   grouped_matmul: c[r,:] = a[r,:]·op(b[e])
//   grouped_matmul_bwd: dw[e] (+)= sum over the rows r of group e in all slots of a[r,:]ᵀ·b[r,:],
//     with b[n,m] and dw[E,k,m]
//   grouped_matmul_bwd_squares: also ss f64[1] = sum of the squares of the final dw. On tensor
//     cores, the warps that write dw square it; otherwise a separate kernel does. Partial sums are
//     added in order.
//   grouped_matmul_scaled: grouped_matmul with 8-bit matrices and their scales
//   grouped_matmul_bias: grouped_matmul, then grouped_bias in place; on Hopper's tensor cores in
//   one
//     kernel, with the same bits
// Data are f32, bf16 or f16 each; products are fp32, rounded once. Rows beyond the counts do not
// influence results and are not written. grouped_tiles.cu has the kernels for Hopper's tensor
// cores, grouped_mma.cu those for other GPUs, grouped_plain.cuh those for all other cases, and
// grouped_float8.cu the quantisation to 8 bits. This file makes the list of groups from which all
// of them work.
#include <algorithm>

#include <cub/block/block_scan.cuh>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Squares.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grouped_plain.cuh"

namespace shardc::kernels::cuda {
namespace {

// ---- the list of groups ----

constexpr int kListThreads = 1024;

struct Listing {
  const int32_t *counts;
  GroupList list;
  int64_t slots, groups, slotRows;
  int64_t tileCols; ///< tiles in a row of a product; 0: work items are up to itemRows rows
  int64_t itemRows;
};

/// Number of work items of a group. In each item, two blocks compute two tiles: one below the
/// other, or, in the last row of an odd number of rows of tiles, side by side.
__device__ int64_t itemsOf(int64_t rows, int64_t tileCols, int64_t itemRows) {
  if (tileCols == 0)
    return (rows + itemRows - 1) / itemRows;
  int64_t tiles = (rows + tiles::kTileRows - 1) / tiles::kTileRows;
  return tiles / 2 * tileCols + tiles % 2 * ((tileCols + 1) / 2);
}

/// Lists the groups of all slots. A group never exceeds its slot, whatever the counts are.
__global__ void __launch_bounds__(kListThreads) listGroups(const Listing p) {
  awaitPrevious();
  using Scan = cub::BlockScan<int64_t, kListThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t all = p.slots * p.groups, before = 0, sum = 0;
  // Rows before each group, over all slots.
  for (int64_t base = 0; base < all; base += kListThreads) {
    int64_t i = base + threadIdx.x, rows = 0;
    if (i < all)
      rows = min(max(int64_t{p.counts[i]}, int64_t{0}), p.slotRows);
    Scan(storage).ExclusiveSum(rows, rows, sum);
    if (i < all)
      p.list.rowsBefore[i] = before + rows;
    before += sum;
    __syncthreads();
  }
  // From these, the range of each group inside its slot, and the number of its first work item.
  int64_t items = 0;
  for (int64_t base = 0; base < all; base += kListThreads) {
    int64_t i = base + threadIdx.x, own = 0;
    if (i < all) {
      int64_t slot = i / p.groups, atSlot = p.list.rowsBefore[slot * p.groups];
      int64_t next = i + 1 < all ? p.list.rowsBefore[i + 1] : before;
      int64_t begin = min(p.list.rowsBefore[i] - atSlot, p.slotRows);
      int64_t end = min(next - atSlot, p.slotRows);
      p.list.begins[i] = static_cast<int32_t>(slot * p.slotRows + begin);
      p.list.ends[i] = static_cast<int32_t>(slot * p.slotRows + end);
      own = itemsOf(end - begin, p.tileCols, p.itemRows);
    }
    int64_t first = 0;
    Scan(storage).ExclusiveSum(own, first, sum);
    if (i < all)
      p.list.firstItems[i] = static_cast<int32_t>(items + first);
    items += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0)
    p.list.firstItems[all] = static_cast<int32_t>(items);
}

// ---- the plain kernel ----

struct Numbers {
  Data x, y; ///< the operands of the call
  int64_t k, m;
  bool isAlongK; ///< matrices are stored as [m, k]

  __device__ float a(int64_t, int64_t row, int64_t at) const { return element(x, row * k + at); }
  __device__ float b(int64_t group, int64_t at, int64_t col) const {
    return element(y, group * k * m + (isAlongK ? col * k + at : at * m + col));
  }
  __device__ float first(int64_t, int64_t row, int64_t col) const {
    return element(x, row * k + col);
  }
  __device__ float second(int64_t, int64_t row, int64_t col) const {
    return element(y, row * m + col);
  }
};

// ---- calls ----

/// Lists the groups and multiplies on a path that adds no biases and no squares: by mma.sync, or on
/// CUDA cores.
void runOther(const Call &call, const Grouped &grouped, const GroupList &list) {
  Queue &queue = queueOf(call);
  if (hasMma(grouped)) {
    list.fill(call, grouped, 0, kMmaRows);
    return launchMma(grouped, list, queue);
  }
  Numbers numbers = {dataOf(grouped.a), dataOf(grouped.b), grouped.k, grouped.m, grouped.transB};
  list.fill(call, grouped, 0);
  plain::launch(grouped, grouped.slots, list, numbers, queue);
}

template <bool kIsGradient> void run(const Call &call) {
  if (call.attrs.fp8_recipe != 0)
    return runFloat8(call, kIsGradient);
  Scratch scratch(call);
  GroupList list(call, scratch);
  Grouped grouped(call, kIsGradient);
  if (!hasTiles(grouped))
    return runOther(call, grouped, list);
  list.fill(call, grouped, tiles::kColsOf16Bits);
  static_cast<void>(launchTiles(grouped, list, queueOf(call)));
}

/// The kernels with tiles add the bias themselves. Otherwise, a second kernel does.
void runBias(const Call &call, const GroupList &list) {
  Grouped grouped(call, false);
  grouped.bias = &call.in[3];
  grouped.weights = call.inCount > 4 ? &call.in[4] : nullptr;
  Queue &queue = queueOf(call);
  if (hasTiles(grouped)) {
    list.fill(call, grouped, tiles::kColsOf16Bits);
    static_cast<void>(launchTiles(grouped, list, queue));
    return;
  }
  runOther(call, grouped, list);
  launchBiases(grouped.c, *grouped.bias, call.in[2], grouped.weights, grouped.c, queue);
}

struct SquareBuffers {
  GroupList list;
  double *partials;

  SquareBuffers(const Call &call, Scratch &scratch) : list(call, scratch) {
    constexpr int kOfTiles = tiles::kBlocksMax * tiles::kWarpsThatMultiply;
    partials = scratch.take<double>(std::max(kOfTiles, squareBlocks(call)));
  }
};

/// The kernels with tiles also sum the squares of what they write. Otherwise, a second kernel reads
/// the result again.
void runSquares(const Call &call, const SquareBuffers &buffers) {
  Grouped grouped(call, true);
  auto *ss = static_cast<double *>(call.out[1].data);
  Queue &queue = queueOf(call);
  if (!hasTiles(grouped)) {
    runOther(call, grouped, buffers.list);
    return launchSquares(call, grouped.c, buffers.partials, ss);
  }
  grouped.squares = buffers.partials;
  buffers.list.fill(call, grouped, tiles::kColsOf16Bits);
  int64_t sums = launchTiles(grouped, buffers.list, queue);
  launchAddSquares(buffers.partials, sums, 1.0, ss, queue);
}

/// Refuses results that are not aligned to 16 bytes, because the squares are read in whole chunks.
const char *acceptsSquares(const Call &call) {
  if (const char *reason = host::kGroupedMatMulBwdSquares.accepts(call))
    return reason;
  bool isAligned = reinterpret_cast<uintptr_t>(call.out[0].data) % 16 == 0;
  return isAligned ? nullptr : "a gradient that is squared does not begin at 16 bytes";
}

template <bool kIsGradient> size_t workspace(const Call &call) {
  return call.attrs.fp8_recipe != 0 ? workspaceOfFloat8(call, kIsGradient)
                                    : workspaceOf<GroupList>(call);
}

} // namespace

GroupList::GroupList(const Call &call, Scratch &scratch) {
  int64_t all = call.in[2].numel();
  rowsBefore = scratch.take<int64_t>(all);
  begins = scratch.take<int32_t>(all);
  ends = scratch.take<int32_t>(all);
  firstItems = scratch.take<int32_t>(all + 1);
}

void GroupList::fill(const Call &call, const Grouped &grouped, int tileCols, int itemRows) const {
  Listing listing = {static_cast<const int32_t *>(call.in[2].data),
                     *this,
                     grouped.slots,
                     grouped.groups,
                     grouped.rows / grouped.slots,
                     tileCols > 0 ? ceilDiv(grouped.m, tileCols) : 0,
                     itemRows};
  launchKernel(listGroups, 1, kListThreads, 0, queueOf(call), listing);
}

Grouped::Grouped(const Call &call, bool isGradient_)
    : a(call.in[0]), b(call.in[1]), c(call.out[0]), slots(call.in[2].shape[0]),
      groups(call.in[2].shape[1]), rows(call.in[0].rows()), k(call.in[0].cols()),
      m(call.out[0].cols()), isGradient(isGradient_), transB(call.attrs.trans_b),
      path(groupedPathOf(call)), multiprocessors(call.multiprocessors) {}

SHARDC_KERNEL(GroupedMatMul, acceptsAs, run<false>, workspace<false>);
SHARDC_KERNEL(GroupedMatMulScaled, acceptsAs, run<false>, workspace<false>);
SHARDC_KERNEL(GroupedMatMulBias, acceptsAs, withBuffers<runBias>);
SHARDC_KERNEL(GroupedMatMulBwd, acceptsAs, run<true>, workspace<true>);
const Kernel kGroupedMatMulBwdSquares =
    kernelOf("grouped_matmul_bwd_squares_cuda", acceptsSquares, withBuffers<runSquares>);

} // namespace shardc::kernels::cuda
