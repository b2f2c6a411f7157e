// Muon on a shard of whole matrices (kernels/host/Muon.cpp says what it computes). Matrices of one
// shape are a batch: one kernel moves the momentum and squares the updates, one divides these by
// their norms and leaves them one after the other in the type of the products, cuBLASLt's batched
// products take the steps, and one kernel updates the weights. Rows that are more than the columns
// are not transposed: the products take the matrix as its transpose. Squares are added in an order
// that only the shape determines. With whole updates, one kernel moves the momentum of the shard's
// rows, another one squares what is gathered, and the last one updates those rows of a matrix that
// are the shard's. With `symmetric`, a product with its own transpose is computed below the
// diagonal, in strips of rows: 3/4 of it, 11/16 in two levels. One kernel copies what is above.
// Mapping: a block has 256 threads, of 8 elements each, and takes chunks of one matrix in turns.
// These kernels are limited by memory; with products of bf16 and a weight in bf16 they read 18 and
// write 12 bytes an element, 6 more with `nesterov`. The products are limited by arithmetic.
#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/host/Matrices.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

using host::Matrix;

constexpr int kMuonThreads = 256;
constexpr int kMuonSlabs = 64; ///< blocks of a matrix, each with a part of its squares

/// One matrix of a batch.
struct MatrixItem {
  int64_t begin; ///< element of the shard, or of the first part
  int32_t take, period;
  float lrMult, wdMult;
  int32_t isDecoupled;
  int32_t part; ///< this rank's one
};

struct MatrixBatch {
  Data g, m, x, weight;
  float *w;
  const StepState *state;
  double *squares; ///< [matrix, slab]
  int64_t rows, columns;
  Data u; ///< updates of whole matrices, or where those of the shard go
  int64_t partRows, partColumns;
  int64_t stride;           ///< elements from one part to the next
  int64_t ownBegin, ownEnd; ///< elements of a part that are the shard's
  int32_t parts;
  bool cutsColumns, isWhole;
  float momentum, oneMinusMomentum, weightDecay, scale;
  bool nesterov, decoupled, hasWeight;
  MatrixItem item[kNsBatchMatrices];
};
static_assert(sizeof(MatrixBatch) <= 4096);

/// A chunk of a matrix: where it lies in the shard, or among the parts, and in x, and how many
/// elements it has.
struct ChunkPlace {
  int64_t inShard, inX;
  int n;
};

__device__ __forceinline__ int64_t chunksOfPart(const MatrixBatch &p) {
  return p.partRows * ((p.partColumns + kChunk - 1) / kChunk);
}
__device__ __forceinline__ int64_t chunksOf(const MatrixBatch &p) {
  return chunksOfPart(p) * p.parts;
}

__device__ __forceinline__ ChunkPlace placeOf(const MatrixBatch &p, int64_t chunk) {
  const MatrixItem &item = p.item[blockIdx.y];
  const int64_t ofRow = (p.partColumns + kChunk - 1) / kChunk;
  const int64_t part = p.parts > 1 ? chunk / chunksOfPart(p) : 0;
  const int64_t inPart = chunk - part * chunksOfPart(p);
  const int64_t row = inPart / ofRow, column = inPart % ofRow * kChunk;
  const int64_t inTensor = row / item.take * item.period + row % item.take;
  const int64_t wholeRow = p.cutsColumns ? row : part * p.partRows + row;
  const int64_t wholeColumn = p.cutsColumns ? part * p.partColumns + column : column;
  return {item.begin + part * p.stride + inTensor * p.partColumns + column,
          (static_cast<int64_t>(blockIdx.y) * p.rows + wholeRow) * p.columns + wholeColumn,
          upToChunk(p.partColumns - column)};
}

__device__ __forceinline__ float decayOf(const MatrixBatch &p) {
  return (p.weightDecay + p.state->weightDecay) * p.item[blockIdx.y].wdMult;
}

/// The gradient of a chunk, with decay unless that is decoupled.
template <Mode M>
__device__ __forceinline__ void gradientOf(const MatrixBatch &p, const ChunkPlace &at,
                                           float (&g)[kChunk]) {
  load8<M>(p.g, at.inShard, at.n, g);
  const float scale = p.state->gradScale, decay = p.decoupled ? 0.0f : decayOf(p);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    g[j] = g[j] * scale + (decay != 0.0f && j < at.n ? decay * p.w[at.inShard + j] : 0.0f);
}

/// What is orthogonalised of a chunk, and the momentum in place of the old one.
template <Mode M>
__device__ __forceinline__ void updatesOf(const MatrixBatch &p, const ChunkPlace &at,
                                          float (&m)[kChunk], float (&update)[kChunk]) {
  float g[kChunk];
  gradientOf<M>(p, at, g);
  load8<M>(p.m, at.inShard, at.n, m);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    m[j] = m[j] + p.oneMinusMomentum * (g[j] - m[j]);
    update[j] = p.nesterov ? g[j] + p.momentum * (m[j] - g[j]) : m[j];
  }
}

template <Mode M>
__global__ void __launch_bounds__(kMuonThreads) makeUpdates(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float m[kChunk], update[kChunk];
    updatesOf<M>(p, at, m, update);
    store8<M>(p.u, at.inShard, at.n, update);
  }
}

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

template <Mode M>
__global__ void __launch_bounds__(kMuonThreads)
    moveMomentum(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  const bool applied = p.state->skip == 0;
  double sum[1] = {0.0};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float m[kChunk], update[kChunk];
    updatesOf<M>(p, at, m, update);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < at.n)
        sum[0] = fma(static_cast<double>(update[j]), static_cast<double>(update[j]), sum[0]);
    if (applied)
      store8<M>(p.m, at.inShard, at.n, m);
  }
  blockSum(sum);
  if (threadIdx.x == 0)
    p.squares[int64_t{kMuonSlabs} * blockIdx.y + blockIdx.x] = sum[0];
}

template <Mode M>
__global__ void __launch_bounds__(kMuonThreads) makeFactor(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  double sum[1] = {0.0};
  if (threadIdx.x < kMuonSlabs)
    sum[0] = p.squares[int64_t{kMuonSlabs} * blockIdx.y + threadIdx.x];
  blockSum(sum);
  const float norm = fmaxf(static_cast<float>(sqrt(sum[0])), kNsNormMin);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float update[kChunk], g[kChunk];
    load8<M>(p.isWhole ? p.u : p.m, at.inShard, at.n, update);
    if (p.nesterov && !p.isWhole) {
      gradientOf<M>(p, at, g);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        update[j] = g[j] + p.momentum * (update[j] - g[j]);
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      update[j] = update[j] / norm;
    store8<M>(p.x, at.inX, at.n, update);
  }
}

template <Mode M>
__global__ void __launch_bounds__(kMuonThreads) applyUpdate(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  const bool applied = p.state->skip == 0;
  const MatrixItem &item = p.item[blockIdx.y];
  const float lr = (item.isDecoupled != 0 ? p.state->decoupledLr : p.state->lr) * item.lrMult;
  const float decay = p.decoupled ? decayOf(p) : 0.0f;
  const Data master = {p.w};
  const int64_t first = item.part * chunksOfPart(p);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x;
       i < chunksOfPart(p); i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, first + i);
    const int64_t inPart = at.inShard - item.part * p.stride, own = inPart - p.ownBegin;
    if (inPart < p.ownBegin || inPart >= p.ownEnd)
      continue; // a row of another rank's shard
    float w[kChunk], x[kChunk];
    load8<M>(master, own, at.n, w);
    if (applied) {
      load8<M>(p.x, at.inX, at.n, x);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        w[j] -= lr * (x[j] * p.scale + decay * w[j]);
      store8<M>(master, own, at.n, w);
    }
    if (p.hasWeight)
      store8<M>(p.weight, own, at.n, w);
  }
}

constexpr int kMirrorTile = 32, kMirrorRows = 8;

/// Copies what is below the diagonal of each square to what is above.
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

bool hasNarrowProducts(const Call &call) {
  return static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
}

/// Elements of a batch, at most.
int64_t batchElements(const Call &call) {
  const Tensor &taken = call.in[host::hasWholeUpdates(call) ? host::kWholeUpdates : 0];
  return std::max(call.attrs.largest_matrix, std::min(taken.numel(), kNsBatchElements));
}

struct MuonBuffers {
  std::byte *x, *next, *square, *mixed; ///< matrices, and short sides by short sides
  double *squares;
  std::byte *gemm;

  MuonBuffers(const Call &call, Scratch &scratch) {
    int64_t bytes =
        batchElements(call) * dtypeBytes(hasNarrowProducts(call) ? DType::BF16 : DType::F32);
    for (std::byte **matrices : {&x, &next, &square, &mixed})
      *matrices = scratch.take<std::byte>(bytes);
    squares = scratch.take<double>(kNsBatchMatrices * kMuonSlabs);
    gemm = scratch.take<std::byte>(kGemmWorkspace);
  }
};

/// The products of a batch of `count` matrices.
class Products {
public:
  Products(const Call &call, const Matrix &shape, int64_t count, const MuonBuffers &buffers)
      : call_(call), shape_(shape), count_(count), buffers_(buffers) {}

  /// Takes the steps, and returns where their result is.
  std::byte *run() const {
    std::byte *x = buffers_.x, *next = buffers_.next;
    const int64_t r = shape_.shortSide(), c = shape_.longSide();
    const bool isTransposed = shape_.isTransposed();
    for (int64_t i = 0; i < call_.attrs.ns_steps; ++i) {
      NsStep step = nsStep(static_cast<NsCoefficients>(call_.attrs.ns_coefficients), i);
      Gemm gram = product(r, r, c, x, x, buffers_.square);
      gram.transA = isTransposed, gram.transB = !isTransposed;
      enqueueSymmetric(gram);
      std::byte *mixed = buffers_.square;
      float factor = step.b;
      if (step.c != 0) {
        Gemm polynomial = product(r, r, r, mixed, mixed, buffers_.mixed);
        enqueueSymmetric(sumOf(polynomial, step.c, step.b, mixed));
        mixed = buffers_.mixed, factor = 1;
      }
      Gemm transposed = product(c, r, r, x, mixed, next),
           straight = product(r, c, r, mixed, x, next);
      enqueue(sumOf(isTransposed ? transposed : straight, factor, step.a, x));
      std::swap(x, next);
    }
    return x;
  }

private:
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
  void enqueue(const Gemm &gemm) const { runGemm(gemm, buffers_.gemm, queueOf(call_)); }

  /// A product whose result is symmetric, of m rows: what lies below the diagonal in strips, each
  /// of the lower half of the rows that are left. `added` is symmetric too.
  void enqueueSymmetric(const Gemm &gemm) const {
    constexpr int64_t kStripRows = 1024; // whose products fill a GPU
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
    if (hasNarrowProducts(call_))
      copy(static_cast<uint16_t *>(gemm.c));
    else
      copy(static_cast<uint32_t *>(gemm.c));
  }

  /// The rows from `begin` to `end`, and the columns up to `end`, of a product of squares' factors.
  Gemm stripOf(Gemm gemm, int64_t begin, int64_t end) const {
    const int64_t size = dtypeBytes(gemm.in);
    auto at = [&](const void *data, int64_t element) {
      return static_cast<const void *>(static_cast<const std::byte *>(data) + element * size);
    };
    gemm.stepsA = {gemm.transA ? gemm.m : gemm.k, gemm.m * gemm.k};
    gemm.stepsB = {gemm.transB ? gemm.k : gemm.n, gemm.n * gemm.k};
    gemm.stepsC = {gemm.n, gemm.m * gemm.n};
    gemm.a = at(gemm.a, gemm.transA ? begin : begin * gemm.k);
    gemm.c = const_cast<void *>(at(gemm.c, begin * gemm.n));
    if (gemm.added != nullptr)
      gemm.added = at(gemm.added, begin * gemm.n);
    gemm.m = end - begin, gemm.n = end;
    return gemm;
  }

  const Call &call_;
  const Matrix &shape_;
  int64_t count_;
  const MuonBuffers &buffers_;
};

/// What all batches of a call have in common; `u`: its operand or result with updates, or null.
MatrixBatch batchOf(const Call &call, const Tensor &moment, const Tensor *u) {
  const Attrs &attrs = call.attrs;
  MatrixBatch p = {};
  p.g = dataOf(call.in[0]), p.m = dataOf(moment);
  p.w = static_cast<float *>(call.in[1].data);
  p.state = static_cast<const StepState *>(call.in[3].data);
  if (u != nullptr)
    p.u = dataOf(*u);
  p.ownEnd = call.in[0].numel();
  p.momentum = static_cast<float>(attrs.momentum);
  p.oneMinusMomentum = static_cast<float>(1.0 - attrs.momentum);
  p.weightDecay = static_cast<float>(attrs.weight_decay);
  p.nesterov = attrs.nesterov, p.decoupled = attrs.decoupled;
  return p;
}

auto shapeOf(const Matrix &matrix) {
  return std::tuple(matrix.rows, matrix.columns, matrix.parts, matrix.cutsColumns);
}

/// Fills in the matrices, which have one shape.
void setMatrices(MatrixBatch &p, const Matrix *matrices, int64_t count) {
  const Matrix &shape = matrices[0];
  p.rows = shape.rows, p.columns = shape.columns;
  p.partRows = shape.partRows(), p.partColumns = shape.partColumns();
  p.parts = static_cast<int32_t>(shape.parts), p.stride = shape.stride;
  p.cutsColumns = shape.cutsColumns;
  for (int64_t i = 0; i < count; ++i) {
    const Matrix &matrix = matrices[i];
    p.item[i] = {matrix.begin,
                 static_cast<int32_t>(matrix.take),
                 static_cast<int32_t>(matrix.period),
                 matrix.range->lrMult,
                 matrix.range->wdMult,
                 matrix.range->isDecoupled ? 1 : 0,
                 static_cast<int32_t>(matrix.part)};
  }
}

/// Whether each chunk begins at a multiple of 16 bytes in all tensors.
bool isAligned(const MatrixBatch &p, std::initializer_list<const Tensor *> tensors,
               const Matrix *matrices, int64_t count) {
  return modeOf(tensors, p.partColumns) != Mode::Scalar && p.stride % kChunk == 0 &&
         p.ownBegin % kChunk == 0 &&
         std::all_of(matrices, matrices + count,
                     [](const Matrix &matrix) { return matrix.begin % kChunk == 0; });
}

/// Calls `run` with batches of matrices of one shape, of so many elements at most.
template <typename Run>
void forEachBatch(std::vector<Matrix> matrices, int64_t elements, const Run &run) {
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const Matrix &a, const Matrix &b) { return shapeOf(a) < shapeOf(b); });
  const auto total = static_cast<int64_t>(matrices.size());
  for (int64_t begin = 0; begin < total;) {
    const Matrix &first = matrices[static_cast<size_t>(begin)];
    int64_t most = std::clamp<int64_t>(elements / first.numel(), 1, kNsBatchMatrices);
    int64_t end = begin + 1;
    while (end < total && end - begin < most &&
           shapeOf(matrices[static_cast<size_t>(end)]) == shapeOf(first))
      ++end;
    run(&first, end - begin);
    begin = end;
  }
}

/// Calls the kernel with the rows of each tensor of the shard as one matrix.
template <typename Kernel>
void forRowsOfShard(const Call &call, MatrixBatch p, std::initializer_list<const Tensor *> tensors,
                    Kernel mixed, Kernel scalar) {
  forEachBatch(host::matricesOf(host::rangesOfShard(call, 0), /*isSplit=*/false),
               call.in[0].numel(), [&](const Matrix *matrices, int64_t count) {
                 setMatrices(p, matrices, count);
                 launchKernel(isAligned(p, tensors, matrices, count) ? mixed : scalar,
                              dim3(kMuonSlabs, static_cast<unsigned>(count)), kMuonThreads, 0,
                              queueOf(call), p);
               });
}

void runBatch(const Call &call, const MuonBuffers &buffers, MatrixBatch p, const Matrix *matrices,
              int64_t count) {
  setMatrices(p, matrices, count);
  p.scale = static_cast<float>(
      updateScale(static_cast<UpdateScale>(call.attrs.update_scale), p.rows, p.columns) *
      call.attrs.extra_scale);
  const Tensor *weight = &call.out[p.hasWeight ? 2 : 0];
  const Tensor *whole = &call.in[p.isWhole ? host::kWholeUpdates : 0];
  bool isMixed =
      isAligned(p, {&call.in[0], &call.out[0], &call.out[1], weight, whole}, matrices, count);
  dim3 grid(kMuonSlabs, static_cast<unsigned>(count));
  auto launch = [&](auto mixed, auto scalar) {
    launchKernel(isMixed ? mixed : scalar, grid, kMuonThreads, 0, queueOf(call), p);
  };
  if (p.isWhole)
    launch(squareWhole<Mode::Mixed>, squareWhole<Mode::Scalar>);
  else
    launch(moveMomentum<Mode::Mixed>, moveMomentum<Mode::Scalar>);
  launch(makeFactor<Mode::Mixed>, makeFactor<Mode::Scalar>);
  p.x.p = Products(call, matrices[0], count, buffers).run();
  launch(applyUpdate<Mode::Mixed>, applyUpdate<Mode::Scalar>);
}

void runMuon(const Call &call) {
  Scratch scratch(call);
  MuonBuffers buffers(call, scratch);
  const bool isWhole = host::hasWholeUpdates(call);
  MatrixBatch p = batchOf(call, call.out[1], isWhole ? &call.in[host::kWholeUpdates] : nullptr);
  p.hasWeight = call.outCount > 2;
  if (p.hasWeight)
    p.weight = dataOf(call.out[2]);
  p.squares = buffers.squares;
  p.x = {buffers.x, hasNarrowProducts(call) ? Format::Bf16 : Format::F32};
  if (isWhole) {
    forRowsOfShard(call, p, {&call.in[0], &call.out[0], &call.out[1]}, moveMomentum<Mode::Mixed>,
                   moveMomentum<Mode::Scalar>);
    const host::OwnElements own = host::ownElements(call);
    p.isWhole = true, p.ownBegin = own.begin, p.ownEnd = own.end;
  }
  forEachBatch(
      host::matricesToUpdate(call), batchElements(call),
      [&](const Matrix *matrices, int64_t count) { runBatch(call, buffers, p, matrices, count); });
}

void runMuonUpdate(const Call &call) {
  forRowsOfShard(call, batchOf(call, call.in[2], &call.out[0]),
                 {&call.in[0], &call.in[1], &call.in[2], &call.out[0]}, makeUpdates<Mode::Mixed>,
                 makeUpdates<Mode::Scalar>);
}

} // namespace

const Kernel kMuonUpdate = {"muon_update_cuda", runMuonUpdate, acceptsAs<&host::kMuonUpdate>};
const Kernel kMuon = {"muon_cuda", runMuon, acceptsAs<&host::kMuon>, workspaceOf<MuonBuffers>};

} // namespace shardc::kernels::cuda
