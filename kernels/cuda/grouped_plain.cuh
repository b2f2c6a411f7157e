// Plain kernels of grouped matrix products, for cases that the tensor-core kernels do not support:
// fp32, mixed types, odd extents, and 8 bits on GPUs other than Hopper. A block of 256 threads
// computes 64 by 64 elements, 16 per thread, from tiles of 16 along k in shared memory. Sums are in
// the order of k (of rows, for a gradient), so repeated runs have the same bits. Limited by the
// arithmetic of CUDA cores. The template parameter `Numbers` reads operands: a(row, k) and b(group,
// k, col) for a product, first(group, row, col of a) and second(group, row, col of b) for a
// gradient.
#pragma once

#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda::plain {

constexpr int kEdge = kPlainRows, kDepth = 16, kPerThread = 4;
static_assert(kEdge == 64, "256 threads have 16 elements each");

/// A tile of each operand, in shared memory.
struct Tiles {
  float a[kDepth][kEdge + 4], b[kDepth][kEdge + 4]; ///< the first index is along k
};

/// Accumulates the product of two tiles over `depth` steps along k.
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

struct Range {
  int64_t begin, end;
};

/// Writes this thread's sums of a tile. A row of the result has cols.end elements. `before` is the
/// number of rows of c that precede the group's matrix.
__device__ __forceinline__ void writeSums(const Data &c, int64_t before, Range rows, Range cols,
                                          const float (&sum)[kPerThread][kPerThread]) {
  int64_t row = rows.begin + threadIdx.x / 16 * kPerThread;
  int64_t col = cols.begin + threadIdx.x % 16 * kPerThread;
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j)
      if (row + i < rows.end && col + j < cols.end)
        setElement(c, (before + row + i) * cols.end + col + j, sum[i][j]);
}

/// Arguments of a kernel: the extents of the products, and the list of their groups.
struct Shape {
  Data c;
  GroupList list;
  int64_t slots, groups, k, m;
};

/// Finds the group of a work item by bisection in the list.
__device__ inline int64_t groupOf(const GroupList &list, int64_t all, int64_t item) {
  int64_t inside = 0, outside = all;
  while (outside - inside > 1) {
    int64_t middle = (inside + outside) / 2;
    (list.firstItems[middle] <= item ? inside : outside) = middle;
  }
  return inside;
}

/// c = a·b for the rows of one item: up to kEdge rows of a group. Rows and columns outside of the
/// matrices count as 0, so the inner loop has no conditions.
template <typename Numbers>
__global__ void __launch_bounds__(256) product(const Shape p, const Numbers numbers) {
  awaitPrevious();
  __shared__ Tiles tiles;
  int64_t all = p.slots * p.groups, item = blockIdx.x;
  if (item >= p.list.firstItems[all])
    return;
  int64_t group = groupOf(p.list, all, item);
  int64_t row0 = p.list.begins[group] + (item - p.list.firstItems[group]) * kEdge;
  int64_t end = p.list.ends[group], col0 = int64_t{blockIdx.y} * kEdge;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    for (int at = static_cast<int>(threadIdx.x); at < kDepth * kEdge; at += 256) {
      int64_t k = k0 + at % kDepth, row = row0 + at / kDepth;
      tiles.a[at % kDepth][at / kDepth] =
          row < end && k < p.k ? numbers.a(group % p.groups, row, k) : 0.0f;
      int depth = numbers.isAlongK ? at % kDepth : at / kEdge;
      int across = numbers.isAlongK ? at / kDepth : at % kEdge;
      int64_t kOfB = k0 + depth, col = col0 + across;
      tiles.b[depth][across] =
          col < p.m && kOfB < p.k ? numbers.b(group % p.groups, kOfB, col) : 0.0f;
    }
    __syncthreads();
    addTiles(tiles, kDepth, sum);
    __syncthreads();
  }
  writeSums(p.c, 0, {row0, end}, {col0, p.m}, sum);
}

/// db = aᵀ·c of one group: k runs over the group's rows, slot after slot, in a fixed order.
template <typename Numbers>
__global__ void __launch_bounds__(256) gradient(const Shape p, const Numbers numbers) {
  awaitPrevious();
  __shared__ Tiles tiles;
  int64_t group = blockIdx.z, row0 = int64_t{blockIdx.x} * kEdge,
          col0 = int64_t{blockIdx.y} * kEdge;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t slot = 0; slot < p.slots; ++slot) {
    int64_t end = p.list.ends[slot * p.groups + group];
    for (int64_t first = p.list.begins[slot * p.groups + group]; first < end; first += kDepth) {
      for (int at = static_cast<int>(threadIdx.x); at < kDepth * kEdge; at += 256) {
        int depth = at / kEdge, across = at % kEdge;
        bool isThere = first + depth < end;
        tiles.a[depth][across] = isThere && row0 + across < p.k
                                     ? numbers.first(group, first + depth, row0 + across)
                                     : 0.0f;
        tiles.b[depth][across] = isThere && col0 + across < p.m
                                     ? numbers.second(group, first + depth, col0 + across)
                                     : 0.0f;
      }
      __syncthreads();
      addTiles(tiles, kDepth, sum);
      __syncthreads();
    }
  }
  writeSums(p.c, group * p.k, {row0, p.k}, {col0, p.m}, sum);
}

/// Enqueues the call. `slots` is the number of slots in the list. Reports a failed launch to the
/// queue.
template <typename Numbers>
void launch(const Grouped &call, int64_t slots, const GroupList &list, const Numbers &numbers,
            Queue &queue) {
  Shape p = {dataOf(call.c), list, slots, call.groups, call.k, call.m};
  auto cols = static_cast<unsigned>(ceilDiv(call.m, kEdge));
  if (call.isGradient) {
    dim3 grid(static_cast<unsigned>(ceilDiv(call.k, kEdge)), cols,
              static_cast<unsigned>(call.groups));
    return launchKernel(gradient<Numbers>, grid, 256, 0, queue, p, numbers);
  }
  auto items = static_cast<unsigned>(call.rows / kEdge + call.allGroups());
  launchKernel(product<Numbers>, dim3(items, cols), 256, 0, queue, p, numbers);
}

} // namespace shardc::kernels::cuda::plain
