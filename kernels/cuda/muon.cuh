// Shared by Muon's kernels: batches of matrices of one shape, their chunks, and products with a
// symmetric result. Mapping: a block has 256 threads with 8 elements each and processes chunks of
// one matrix in a loop.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Symmetric.h"
#include "kernels/cuda/common.cuh"
#include "kernels/host/Matrices.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {

using host::Matrix;
using host::MatrixPart;

inline constexpr int kMuonThreads = 256;
inline constexpr int kMuonSlabs =
    kNsSquareSums; ///< blocks per matrix; each leaves one partial sum of squares

/// One matrix of a batch.
struct MatrixItem {
  int64_t begin; ///< where the tensor begins in the shard, or in the first part
  int32_t first, skip;
  float lrMult, wdMult;
  int32_t isDecoupled;
  int32_t part; ///< index of this rank's part
};

/// A batch of matrices of one shape, as a kernel parameter (host::Matrix). Ranks' parts of a tensor
/// have `tensorRows` of its rows, or one of `columnParts` ranges of its columns.
struct MatrixBatch {
  Data g, m, x, weight;
  float *w;
  const StepState *state;
  double *squares; ///< partial sums, [matrix, slab]
  int64_t rows, columns;
  Data u; ///< updates of whole matrices, or the destination of the shard's updates
  int64_t tensorRows, partColumns;
  int64_t stride;           ///< elements between the beginnings of two parts
  int64_t ownBegin, ownEnd; ///< range of a part's elements that the shard has
  int32_t take, period;
  int32_t columnParts;
  bool isWhole;
  float momentum, oneMinusMomentum, weightDecay, scale;
  bool nesterov, decoupled, hasWeight;
  MatrixItem item[kNsBatchMatrices];
};
static_assert(sizeof(MatrixBatch) <= 4096);

/// A chunk of a matrix: its position in the shard or among the parts, its position in x, and its
/// number of elements.
struct ChunkPlace {
  int64_t inShard, inX;
  int n;
};

/// Chunks of all rows, or of one part of the columns; no chunk crosses the end of a row.
__device__ __forceinline__ int64_t chunksOfPart(const MatrixBatch &p) {
  return p.rows * ((p.partColumns + kChunk - 1) / kChunk);
}
__device__ __forceinline__ int64_t chunksOf(const MatrixBatch &p) {
  return chunksOfPart(p) * p.columnParts;
}

/// The place of a chunk of matrix blockIdx.y. `chunk` counts the chunks of all parts.
__device__ __forceinline__ ChunkPlace placeOf(const MatrixBatch &p, int64_t chunk) {
  const MatrixItem &item = p.item[blockIdx.y];
  const int64_t ofRow = (p.partColumns + kChunk - 1) / kChunk;
  const int64_t columnPart = p.columnParts > 1 ? chunk / chunksOfPart(p) : 0;
  const int64_t inPart = chunk - columnPart * chunksOfPart(p);
  const int64_t row = inPart / ofRow, column = inPart % ofRow * kChunk;
  const int64_t turn = (row + item.skip) / p.take;
  const int64_t inTensor = item.first + turn * p.period + (row + item.skip - turn * p.take);
  const int64_t part = p.stride > 0 ? inTensor / p.tensorRows : 0;
  return {item.begin + (columnPart + part) * p.stride +
              (inTensor - part * p.tensorRows) * p.partColumns + column,
          (static_cast<int64_t>(blockIdx.y) * p.rows + row) * p.columns +
              columnPart * p.partColumns + column,
          upToChunk(p.partColumns - column)};
}

/// Computes kMuonSlabs partial sums of the squares of each matrix's update, in fp64. Grid: x has
/// the slabs, y the matrices.
template <Mode M>
__global__ void __launch_bounds__(kMuonThreads) squareWhole(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  double sum[1] = {0.0};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float update[kChunk];
    load8<M>(p.u, at.inShard, at.n, update);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < at.n)
        sum[0] = fma(static_cast<double>(update[j]), static_cast<double>(update[j]), sum[0]);
  }
  blockSum(sum);
  if (threadIdx.x == 0)
    p.squares[int64_t{kMuonSlabs} * blockIdx.y + blockIdx.x] = sum[0];
}

inline constexpr int kMirrorTile = 32, kMirrorRows = 8;

/// Copies the elements below the diagonal of each square matrix to their mirrored places above it.
template <typename T>
__global__ void __launch_bounds__(kMirrorTile *kMirrorRows) mirror(T *squares, int64_t extent) {
  awaitPrevious();
  __shared__ T tile[kMirrorTile][kMirrorTile + 1];
  if (blockIdx.x > blockIdx.y)
    return;
  T *square = squares + blockIdx.z * extent * extent;
  const int64_t row = int64_t{blockIdx.y} * kMirrorTile, column = int64_t{blockIdx.x} * kMirrorTile;
  for (int i = threadIdx.y; i < kMirrorTile; i += kMirrorRows)
    if (row + i < extent && column + threadIdx.x < extent)
      tile[i][threadIdx.x] = square[(row + i) * extent + column + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < kMirrorTile; i += kMirrorRows)
    if (column + i < row + threadIdx.x && column + i < extent && row + threadIdx.x < extent)
      square[(column + i) * extent + row + threadIdx.x] = tile[threadIdx.x][i];
}

/// Whether the products of Newton-Schulz steps are computed in bf16.
inline bool hasNarrowProducts(const Call &call) {
  return static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
}

/// Products of a batch of `count` matrices, in the precision of the call's `products`.
class MatrixProducts {
public:
  MatrixProducts(const Call &call, int64_t count, std::byte *workspace)
      : call_(call), count_(count), workspace_(workspace) {}

  Gemm product(int64_t m, int64_t n, int64_t k, const void *a, const void *b, void *c) const {
    Gemm gemm;
    gemm.a = a, gemm.b = b, gemm.c = c;
    gemm.m = m, gemm.n = n, gemm.k = k, gemm.batches = count_;
    gemm.in = gemm.out = hasNarrowProducts(call_) ? DType::BF16 : DType::F32;
    gemm.tf32 = static_cast<NsProducts>(call_.attrs.products) == NsProducts::High;
    gemm.multiprocessors = call_.multiprocessors;
    return gemm;
  }
  static Gemm sumOf(Gemm gemm, float alpha, float beta, const void *added) {
    gemm.alpha = alpha, gemm.beta = beta, gemm.added = added;
    return gemm;
  }
  void enqueue(const Gemm &gemm) const { runGemm(gemm, workspace_, queueOf(call_)); }

  /// Enqueues products with symmetric results, which have the same alpha and beta. What is added
  /// must be the first operand, and symmetric. The products that the tile kernel supports are one
  /// launch, if that is faster.
  static void enqueueSymmetric(const Call &call, std::span<const Gemm> gemms,
                               std::byte *workspace) {
    std::vector<SymmetricGroup> groups;
    std::vector<const Gemm *> others;
    auto groupOf = [](const Gemm &gemm) {
      return SymmetricGroup{gemm.a, gemm.c, gemm.m, gemm.k, gemm.batches, gemm.transA};
    };
    for (const Gemm &gemm : gemms)
      if (gemm.in == DType::BF16 && gemm.out == DType::BF16 &&
          hasSymmetricTiles(groupOf(gemm), queueOf(call)))
        groups.push_back(groupOf(gemm));
      else
        others.push_back(&gemm);
    if (!areTilesFaster(groups, call.multiprocessors)) {
      groups.clear(), others.clear();
      for (const Gemm &gemm : gemms)
        others.push_back(&gemm);
    }
    for (const Gemm *gemm : others)
      MatrixProducts(call, gemm->batches, workspace).enqueueStrips(*gemm);
    if (!groups.empty())
      launchSymmetric(groups, gemms[0].alpha, gemms[0].beta, call.multiprocessors, queueOf(call));
  }

private:
  /// Computes a symmetric product of m rows. Only strips of rows are computed, up to the diagonal:
  /// each strip is the lower half of the remaining rows. The rest is copied.
  void enqueueStrips(const Gemm &gemm) const {
    constexpr int64_t kStripRows = 1024; // rows of a strip whose products still fill a GPU
    const int64_t extent = gemm.m;
    bool cuts = call_.attrs.symmetric && extent % (2 * kStripRows) == 0 &&
                !queueOf(call_).context().options().ownKernels;
    if (!cuts)
      return enqueue(gemm);
    int64_t left = extent;
    for (; left >= 2 * kStripRows && left % 2 == 0; left /= 2)
      enqueue(stripOf(gemm, left / 2, left));
    enqueue(stripOf(gemm, 0, left));
    auto tiles = static_cast<unsigned>((extent + kMirrorTile - 1) / kMirrorTile);
    dim3 grid(tiles, tiles, static_cast<unsigned>(count_));
    auto copy = [&](auto *squares) {
      launchKernel(mirror<std::remove_pointer_t<decltype(squares)>>, grid,
                   dim3(kMirrorTile, kMirrorRows), 0, queueOf(call_), squares, extent);
    };
    if (dtypeBytes(gemm.out) == 2)
      copy(static_cast<uint16_t *>(gemm.c));
    else
      copy(static_cast<uint32_t *>(gemm.c));
  }

  /// Rows [begin, end) of a square product, and their columns [0, end).
  Gemm stripOf(Gemm gemm, int64_t begin, int64_t end) const {
    auto at = [](const void *data, int64_t element, DType type) {
      return static_cast<const void *>(static_cast<const std::byte *>(data) +
                                       element * dtypeBytes(type));
    };
    gemm.stepsA = {gemm.transA ? gemm.m : gemm.k, gemm.m * gemm.k};
    gemm.stepsB = {gemm.transB ? gemm.k : gemm.n, gemm.n * gemm.k};
    gemm.stepsC = {gemm.n, gemm.m * gemm.n};
    gemm.a = at(gemm.a, gemm.transA ? begin : begin * gemm.k, gemm.in);
    gemm.c = const_cast<void *>(at(gemm.c, begin * gemm.n, gemm.out));
    if (gemm.added != nullptr)
      gemm.added = at(gemm.added, begin * gemm.n, gemm.out);
    gemm.m = end - begin, gemm.n = end;
    return gemm;
  }

  const Call &call_;
  int64_t count_;
  std::byte *workspace_;
};

/// Whether one batch can hold both matrices, whose addresses follow from the batch's.
inline bool hasShapeOf(const Matrix &matrix, const Matrix &other) {
  auto of = [](const Matrix &each) {
    return std::tuple(each.rows, each.columns, each.columnParts, each.tensorRows, each.take,
                      each.period);
  };
  return of(matrix) == of(other);
}
inline bool hasShapeOf(const MatrixPart &part, const MatrixPart &other) {
  return part.shape() == other.shape() && hasShapeOf(part.place, other.place);
}

/// Calls `run` with batches of parts of one shape, and the index of each batch's first part. The
/// products of a batch have at most `products` elements. Parts without rows are left out.
template <typename Run>
void forEachBatchOfParts(const std::vector<MatrixPart> &parts, int64_t products, const Run &run) {
  for (size_t begin = 0; begin < parts.size();) {
    const MatrixPart &first = parts[begin];
    auto most = static_cast<size_t>(
        std::clamp<int64_t>(products / (first.side() * first.side()), 1, kNsBatchMatrices));
    size_t end = begin + 1;
    while (end < parts.size() && end - begin < most && hasShapeOf(parts[end], first))
      ++end;
    if (first.place.rows > 0)
      run(std::span<const MatrixPart>(&first, end - begin), static_cast<int64_t>(begin));
    begin = end;
  }
}

/// Sets the fields that describe the matrices, which must have one shape.
inline void setMatrices(MatrixBatch &p, const Matrix *matrices, int64_t count) {
  const Matrix &shape = matrices[0];
  p.rows = shape.rows, p.columns = shape.columns;
  p.tensorRows = shape.tensorRows, p.partColumns = shape.partColumns();
  p.take = static_cast<int32_t>(shape.take), p.period = static_cast<int32_t>(shape.period);
  p.columnParts = static_cast<int32_t>(shape.columnParts), p.stride = shape.stride;
  for (int64_t i = 0; i < count; ++i) {
    const Matrix &matrix = matrices[i];
    p.item[i] = {matrix.begin,
                 static_cast<int32_t>(matrix.first),
                 static_cast<int32_t>(matrix.skip),
                 matrix.range->lrMult,
                 matrix.range->wdMult,
                 matrix.range->isDecoupled ? 1 : 0,
                 static_cast<int32_t>(matrix.part)};
  }
}

/// Whether every chunk begins at a multiple of 16 bytes in all tensors.
inline bool isAligned(const MatrixBatch &p, std::initializer_list<const Tensor *> tensors,
                      const Matrix *matrices, int64_t count) {
  return modeOf(tensors, p.partColumns) != Mode::Scalar && p.stride % kChunk == 0 &&
         p.ownBegin % kChunk == 0 &&
         std::all_of(matrices, matrices + count,
                     [](const Matrix &matrix) { return matrix.begin % kChunk == 0; });
}

} // namespace shardc::kernels::cuda
