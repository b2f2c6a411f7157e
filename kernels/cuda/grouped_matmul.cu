// grouped_matmul: c[r,:] = a[r,:]·op(b[e]) of each row r of run e, a[n,k], b[E,k,m] or with trans_b
// [E,m,k], c[n,m]. grouped_matmul_bwd: dw[e] (+)= sum over the rows r of run e of all slots of
// a[r,:]ᵀ·b[r,:], a[n,k], b[n,m], dw[E,k,m]. Data are f32, bf16 or f16 each; products are fp32,
// rounded once. Rows that are not counted do not influence results and are not written.
// grouped_tiles.cu computes what Hopper's tensor cores can. Here is the list of runs that both
// kernels work from, and the plain kernel for the rest: fp32, mixed types, odd extents, other GPUs.
// Mapping: a block of 256 threads computes 64 by 64 elements, 16 each, from tiles of 16 rows of k
// in shared memory; sums are in the order of k, or of rows. Limited by the CUDA cores' arithmetic.
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

// ---- the list of runs ----

constexpr int kListThreads = 1024;

struct Listing {
  const int32_t *counts;
  RunList list;
  int64_t slots, runs, slotRows;
  int64_t tileCols; ///< columns of tiles of a product; 0: pieces are rows of the plain kernel
};

/// Pieces of work of a run. Two blocks compute two tiles together: one below the other, and in the
/// last row of an odd number, one beside the other.
__device__ int64_t itemsOf(int64_t rows, int64_t tileCols) {
  if (tileCols == 0)
    return (rows + kPlainRows - 1) / kPlainRows;
  int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return tiles / 2 * tileCols + tiles % 2 * ((tileCols + 1) / 2);
}

/// No run goes beyond its slot, whatever counts say.
__global__ void __launch_bounds__(kListThreads) listRuns(const Listing p) {
  awaitPrevious();
  using Scan = cub::BlockScan<int64_t, kListThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t all = p.slots * p.runs, before = 0, sum = 0;
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
  int64_t items = 0;
  for (int64_t base = 0; base < all; base += kListThreads) {
    int64_t i = base + threadIdx.x, own = 0;
    if (i < all) {
      int64_t slot = i / p.runs, atSlot = p.list.rowsBefore[slot * p.runs];
      int64_t next = i + 1 < all ? p.list.rowsBefore[i + 1] : before;
      int64_t begin = min(p.list.rowsBefore[i] - atSlot, p.slotRows);
      int64_t end = min(next - atSlot, p.slotRows);
      p.list.begins[i] = static_cast<int32_t>(slot * p.slotRows + begin);
      p.list.ends[i] = static_cast<int32_t>(slot * p.slotRows + end);
      own = itemsOf(end - begin, p.tileCols);
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

constexpr int kEdge = kPlainRows, kDepth = 16, kPerThread = 4;
static_assert(kEdge == 64, "256 threads have 16 elements each");

struct Tiles {
  float a[kDepth][kEdge + 4], b[kDepth][kEdge + 4]; ///< along k first
};

/// Adds the product of tiles of so many rows along k.
__device__ __forceinline__ void addTiles(const Tiles &tiles, int depth,
                                         float (&sum)[kPerThread][kPerThread]) {
  int row = static_cast<int>(threadIdx.x) / 16 * kPerThread;
  int col = static_cast<int>(threadIdx.x) % 16 * kPerThread;
  for (int k = 0; k < depth; ++k)
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
#pragma unroll
      for (int j = 0; j < kPerThread; ++j)
        sum[i][j] += tiles.a[k][row + i] * tiles.b[k][col + j];
}

struct Plain {
  Data a, b, c;
  RunList list;
  int64_t slots, runs, k, m;
  bool transB;
};

/// The run that a piece of work belongs to.
__device__ int64_t runOf(const RunList &list, int64_t all, int64_t item) {
  int64_t inside = 0, outside = all;
  while (outside - inside > 1) {
    int64_t middle = (inside + outside) / 2;
    (list.firstItems[middle] <= item ? inside : outside) = middle;
  }
  return inside;
}

__global__ void __launch_bounds__(256) plainProduct(const Plain p) {
  awaitPrevious();
  __shared__ Tiles tiles;
  int64_t all = p.slots * p.runs, item = blockIdx.x;
  if (item >= p.list.firstItems[all])
    return;
  int64_t run = runOf(p.list, all, item);
  int64_t row0 = p.list.begins[run] + (item - p.list.firstItems[run]) * kEdge;
  int64_t end = p.list.ends[run], col0 = int64_t{blockIdx.y} * kEdge,
          matrix = run % p.runs * p.k * p.m;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    for (int at = static_cast<int>(threadIdx.x); at < kDepth * kEdge; at += 256) {
      int64_t k = k0 + at % kDepth, row = row0 + at / kDepth;
      tiles.a[at % kDepth][at / kDepth] = row < end && k < p.k ? element(p.a, row * p.k + k) : 0.0f;
      int depth = p.transB ? at % kDepth : at / kEdge, across = p.transB ? at / kDepth : at % kEdge;
      int64_t kOfB = k0 + depth, col = col0 + across;
      tiles.b[depth][across] =
          col < p.m && kOfB < p.k
              ? element(p.b, matrix + (p.transB ? col * p.k + kOfB : kOfB * p.m + col))
              : 0.0f;
    }
    __syncthreads();
    addTiles(tiles, kDepth, sum);
    __syncthreads();
  }
  int64_t row = row0 + threadIdx.x / 16 * kPerThread, col = col0 + threadIdx.x % 16 * kPerThread;
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j)
      if (row + i < end && col + j < p.m)
        setElement(p.c, (row + i) * p.m + col + j, sum[i][j]);
}

__global__ void __launch_bounds__(256) plainGradient(const Plain p) {
  awaitPrevious();
  __shared__ Tiles tiles;
  int64_t run = blockIdx.z, row0 = int64_t{blockIdx.x} * kEdge, col0 = int64_t{blockIdx.y} * kEdge;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t slot = 0; slot < p.slots; ++slot) {
    int64_t end = p.list.ends[slot * p.runs + run];
    for (int64_t first = p.list.begins[slot * p.runs + run]; first < end; first += kDepth) {
      for (int at = static_cast<int>(threadIdx.x); at < kDepth * kEdge; at += 256) {
        int depth = at / kEdge, across = at % kEdge;
        bool isThere = first + depth < end;
        tiles.a[depth][across] = isThere && row0 + across < p.k
                                     ? element(p.a, (first + depth) * p.k + row0 + across)
                                     : 0.0f;
        tiles.b[depth][across] = isThere && col0 + across < p.m
                                     ? element(p.b, (first + depth) * p.m + col0 + across)
                                     : 0.0f;
      }
      __syncthreads();
      addTiles(tiles, kDepth, sum);
      __syncthreads();
    }
  }
  int64_t row = row0 + threadIdx.x / 16 * kPerThread, col = col0 + threadIdx.x % 16 * kPerThread;
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j)
      if (row + i < p.k && col + j < p.m)
        setElement(p.c, (run * p.k + row + i) * p.m + col + j, sum[i][j]);
}

// ---- calls ----

struct Buffers {
  RunList list;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t all = call.in[2].numel();
    list.rowsBefore = scratch.take<int64_t>(all);
    list.begins = scratch.take<int32_t>(all);
    list.ends = scratch.take<int32_t>(all);
    list.firstItems = scratch.take<int32_t>(all + 1);
  }
};

template <bool kIsGradient> Grouped groupedOf(const Call &call) {
  Grouped grouped = {call.in[0], call.in[1], call.out[0]};
  const Tensor &counts = call.in[2];
  grouped.slots = counts.shape[0], grouped.runs = counts.shape[1];
  grouped.rows = call.in[0].rows();
  grouped.k = call.in[0].cols(), grouped.m = call.out[0].cols();
  grouped.isGradient = kIsGradient;
  grouped.transB = call.attrs.trans_b;
  grouped.multiprocessors = call.multiprocessors;
  return grouped;
}

void launchPlain(const Grouped &call, const RunList &list, Queue &queue) {
  Plain p = {dataOf(call.a), dataOf(call.b), dataOf(call.c), list,       call.slots,
             call.runs,      call.k,         call.m,         call.transB};
  auto cols = static_cast<unsigned>(ceilDiv(call.m, kEdge));
  if (call.isGradient) {
    dim3 grid(static_cast<unsigned>(ceilDiv(call.k, kEdge)), cols,
              static_cast<unsigned>(call.runs));
    return launchKernel(plainGradient, grid, 256, 0, queue, p);
  }
  auto items = static_cast<unsigned>(call.rows / kEdge + call.allRuns());
  launchKernel(plainProduct, dim3(items, cols), 256, 0, queue, p);
}

template <bool kIsGradient> void run(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  Grouped grouped = groupedOf<kIsGradient>(call);
  bool onTiles = hasTiles(grouped);
  Listing listing = {static_cast<const int32_t *>(call.in[2].data),
                     buffers.list,
                     grouped.slots,
                     grouped.runs,
                     grouped.rows / grouped.slots,
                     onTiles ? ceilDiv(grouped.m, kTileCols) : 0};
  Queue &queue = queueOf(call);
  launchKernel(listRuns, 1, kListThreads, 0, queue, listing);
  if (onTiles)
    launchTiles(grouped, buffers.list, queue);
  else
    launchPlain(grouped, buffers.list, queue);
}

template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (call.attrs.fp8_recipe != 0)
    return "GPUs have no grouped product of 8-bit factors yet";
  return acceptsAs<kOracle>(call);
}

} // namespace

const Kernel kGroupedMatMul = {"grouped_matmul_cuda", run<false>, accepts<&host::kGroupedMatMul>,
                               workspaceOf<Buffers>};
const Kernel kGroupedMatMulBwd = {"grouped_matmul_bwd_cuda", run<true>,
                                  accepts<&host::kGroupedMatMulBwd>, workspaceOf<Buffers>};

} // namespace shardc::kernels::cuda
