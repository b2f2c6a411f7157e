// Muon on a shard of whole matrices; kernels/host/Muon.cpp defines it. Matrices of one shape form a
// batch. One kernel updates the momentum and squares the updates. A second divides the updates by
// their norms and stores them contiguously in the type of the products. cuBLASLt's batched products
// execute the Newton-Schulz steps, and a last kernel updates the weights. Matrices with more rows
// than columns are not transposed; the products use them as transposed factors. Squares are added
// in an order that depends on the shape alone.
//
// With whole updates, one kernel updates the momentum of the shard's rows, another squares the
// gathered updates, and the last updates the rows that belong to the shard. With `symmetric`, a
// product of a matrix and its transpose is computed only up to the diagonal, in strips of rows: 3/4
// of it, or 11/16 with two levels. A kernel copies the other half.
//
// Mapping: a block has 256 threads with 8 elements each and processes chunks of one matrix in a
// loop. These kernels are limited by memory: with products and a weight in bf16, they read 18 and
// write 12 bytes per element, 6 more with `nesterov`. The products are limited by arithmetic.
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/muon.cuh"

namespace shardc::kernels::cuda {
namespace {

__device__ __forceinline__ float decayOf(const MatrixBatch &p) {
  return (p.weightDecay + p.state->weightDecay) * p.item[blockIdx.y].wdMult;
}

/// The gradient of a chunk, with weight decay unless it is decoupled.
template <Mode M>
__device__ __forceinline__ void gradientOf(const MatrixBatch &p, const ChunkPlace &at,
                                           float (&g)[kChunk]) {
  load8<M>(p.g, at.inShard, at.n, g);
  const float scale = p.state->gradScale, decay = p.decoupled ? 0.0f : decayOf(p);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    g[j] = g[j] * scale + (decay != 0.0f && j < at.n ? decay * p.w[at.inShard + j] : 0.0f);
}

/// Updates the momentum of a chunk, and computes the values to orthogonalise.
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

/// Upper bound of the number of elements in a batch.
int64_t batchElements(const Call &call) {
  if (call.attrs.divided)
    return 0; // the Newton-Schulz steps have already been executed
  const Tensor &taken = call.in[host::hasWholeUpdates(call) ? host::kWholeUpdates : 0];
  return std::max(call.attrs.largest_matrix, std::min(taken.numel(), kNsBatchElements));
}

struct MuonBuffers {
  std::byte *x, *next, *square, *mixed; ///< matrices; square and mixed: short side by short side
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

/// The matrix products of a batch of `count` matrices.
class Products : MatrixProducts {
public:
  Products(const Call &call, const Matrix &shape, int64_t count, const MuonBuffers &buffers)
      : MatrixProducts(call, count, buffers.gemm), call_(call), shape_(shape), buffers_(buffers) {}

  /// Executes the Newton-Schulz steps and returns the buffer with the result.
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
  const Call &call_;
  const Matrix &shape_;
  const MuonBuffers &buffers_;
};

/// Sets the fields that all batches of a call share. `u` is the operand or result with updates, or
/// null.
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

/// Calls `run` with batches of matrices of one shape, each with up to `elements` elements.
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

/// Calls the kernel with the shard's rows of each tensor as one matrix.
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

float scaleOf(const Call &call, int64_t rows, int64_t columns) {
  auto kind = static_cast<UpdateScale>(call.attrs.update_scale);
  return static_cast<float>(updateScale(kind, rows, columns) * call.attrs.extra_scale);
}

void runBatch(const Call &call, const MuonBuffers &buffers, MatrixBatch p, const Matrix *matrices,
              int64_t count) {
  setMatrices(p, matrices, count);
  p.scale = scaleOf(call, p.rows, p.columns);
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

/// Updates the shard's rows from the results of divided Newton-Schulz steps, which are parts of
/// matrices.
void updateDivided(const Call &call, MatrixBatch p) {
  const Tensor &left = call.in[host::kWholeUpdates], *weight = &call.out[p.hasWeight ? 2 : 0];
  auto update = [&](std::span<const MatrixPart> parts, int64_t) {
    std::vector<Matrix> places;
    for (const MatrixPart &part : parts)
      places.push_back(part.place);
    const auto count = static_cast<int64_t>(places.size());
    setMatrices(p, places.data(), count);
    p.scale = scaleOf(call, parts[0].rows(), parts[0].columns());
    p.x = dataOf(left);
    p.x.p = static_cast<std::byte *>(left.data) + parts[0].at * dtypeBytes(left.dtype);
    bool isMixed = isAligned(p, {&call.out[0], weight, &left}, places.data(), count) &&
                   parts[0].at % kChunk == 0;
    launchKernel(isMixed ? applyUpdate<Mode::Mixed> : applyUpdate<Mode::Scalar>,
                 dim3(kMuonSlabs, static_cast<unsigned>(count)), kMuonThreads, 0, queueOf(call), p);
  };
  forEachBatchOfParts(host::partsToUpdate(call), std::numeric_limits<int64_t>::max(), update);
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
  if (call.attrs.divided)
    return updateDivided(call, p);
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
