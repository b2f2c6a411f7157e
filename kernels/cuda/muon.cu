// Muon on a shard of whole matrices; kernels/host/Muon.cpp defines it. Matrices of one shape form a
// batch, and batches of several shapes form a pack. One kernel per batch updates the momentum and
// squares the updates. A second divides the updates by their norms and stores them contiguously in
// the type of the products. The Newton-Schulz steps of a pack are executed together, and a last
// kernel per batch updates the weights. Matrices with more rows than columns are not transposed;
// the products use them as transposed operands. Squares are added in an order that depends on the
// shape alone.
//
// With whole updates, one kernel updates the momentum of the shard's rows, another squares the
// gathered updates, and the last updates the rows that belong to the shard.
//
// Two of a step's three products are symmetric. On Hopper, if they are bf16, symmetric_tiles.cu
// computes only their tiles up to the diagonal, of all matrices of a pack in one launch. cuBLASLt's
// batched products compute the rest. With `symmetric`, they too compute only strips of rows up to
// the diagonal: 3/4 of a product, or 11/16 with two levels. A kernel copies the other half.
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
  static_assert(kMuonSlabs == kMuonThreads);
  double sum[1] = {p.squares[int64_t{kMuonSlabs} * blockIdx.y + threadIdx.x]};
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
  const int64_t first = p.columnParts > 1 ? item.part * chunksOfPart(p) : 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x;
       i < chunksOfPart(p); i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, first + i);
    const int64_t inPart = at.inShard - item.part * p.stride, own = inPart - p.ownBegin;
    if (inPart < p.ownBegin || inPart >= p.ownEnd)
      continue; // a row of another rank's part or shard
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

/// Matrices of one shape, and where they are in the buffers of a pack.
struct Batch {
  const Matrix *matrices;
  int64_t count, at, product; ///< first elements in x, and in square

  int64_t end() const { return at + count * matrices->numel(); }
};

/// The matrix products of batches whose Newton-Schulz steps are executed together.
class Products {
public:
  Products(const Call &call, std::span<const Batch> batches, const MuonBuffers &buffers)
      : call_(call), batches_(batches), buffers_(buffers) {}

  /// Executes the Newton-Schulz steps and returns the buffer with the results.
  std::byte *run() const {
    std::byte *x = buffers_.x, *next = buffers_.next;
    for (int64_t i = 0; i < call_.attrs.ns_steps; ++i) {
      NsStep step = nsStep(static_cast<NsCoefficients>(call_.attrs.ns_coefficients), i);
      square(x);
      if (step.c != 0)
        mix(step);
      for (const Batch &batch : batches_)
        enqueueLast(batch, step, x, next);
      std::swap(x, next);
    }
    return x;
  }

private:
  MatrixProducts productsOf(const Batch &batch) const {
    return {call_, batch.count, buffers_.gemm};
  }
  std::byte *at(std::byte *buffer, int64_t element) const {
    return buffer + element * dtypeBytes(hasNarrowProducts(call_) ? DType::BF16 : DType::F32);
  }

  /// square = x·xᵀ, or xᵀ·x if the matrices have more rows than columns.
  void square(std::byte *x) const {
    std::vector<Gemm> grams;
    for (const Batch &batch : batches_) {
      const int64_t r = batch.matrices->shortSide(), c = batch.matrices->longSide();
      std::byte *from = at(x, batch.at), *to = at(buffers_.square, batch.product);
      Gemm &gram = grams.emplace_back(productsOf(batch).product(r, r, c, from, from, to));
      gram.transA = batch.matrices->isTransposed(), gram.transB = !gram.transA;
    }
    MatrixProducts::enqueueSymmetric(call_, grams, buffers_.gemm);
  }

  /// mixed = c·square² + b·square.
  void mix(const NsStep &step) const {
    std::vector<Gemm> polynomials;
    for (const Batch &batch : batches_) {
      const int64_t r = batch.matrices->shortSide();
      std::byte *from = at(buffers_.square, batch.product), *to = at(buffers_.mixed, batch.product);
      polynomials.push_back(MatrixProducts::sumOf(
          productsOf(batch).product(r, r, r, from, from, to), step.c, step.b, from));
    }
    MatrixProducts::enqueueSymmetric(call_, polynomials, buffers_.gemm);
  }

  /// next = a·x + mixed·x, or a·x + x·mixed.
  void enqueueLast(const Batch &batch, const NsStep &step, std::byte *x, std::byte *next) const {
    const MatrixProducts products = productsOf(batch);
    const int64_t r = batch.matrices->shortSide(), c = batch.matrices->longSide();
    const bool hasMixed = step.c != 0;
    std::byte *from = at(x, batch.at), *to = at(next, batch.at);
    std::byte *mixed = at(hasMixed ? buffers_.mixed : buffers_.square, batch.product);
    Gemm gemm = batch.matrices->isTransposed() ? products.product(c, r, r, from, mixed, to)
                                               : products.product(r, c, r, mixed, from, to);
    products.enqueue(MatrixProducts::sumOf(gemm, hasMixed ? 1 : step.b, step.a, from));
  }

  const Call &call_;
  std::span<const Batch> batches_;
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

/// Sorts the matrices by shape, and calls `run` with batches of matrices of one shape, each with up
/// to `elements` elements.
template <typename Run>
void forEachBatch(std::vector<Matrix> &matrices, int64_t elements, const Run &run) {
  auto shapeOf = [](const Matrix &each) {
    return std::tuple(each.rows, each.columns, each.columnParts);
  };
  std::stable_sort(matrices.begin(), matrices.end(),
                   [&](const Matrix &a, const Matrix &b) { return shapeOf(a) < shapeOf(b); });
  const auto total = static_cast<int64_t>(matrices.size());
  for (int64_t begin = 0; begin < total;) {
    const Matrix &first = matrices[static_cast<size_t>(begin)];
    int64_t most = std::clamp<int64_t>(elements / first.numel(), 1, kNsBatchMatrices);
    int64_t end = begin + 1;
    while (end < total && end - begin < most &&
           hasShapeOf(matrices[static_cast<size_t>(end)], first))
      ++end;
    run(&first, end - begin);
    begin = end;
  }
}

/// Calls the kernel with the shard's rows of each tensor as one matrix.
template <typename Kernel>
void forRowsOfShard(const Call &call, MatrixBatch p, std::initializer_list<const Tensor *> tensors,
                    Kernel mixed, Kernel scalar) {
  std::vector<Matrix> rows;
  for (const host::TensorRows &tensor : host::tensorsOf(host::rangesOfShard(call, 0)))
    rows.push_back(host::matrixOf(tensor));
  forEachBatch(rows, call.in[0].numel(), [&](const Matrix *matrices, int64_t count) {
    setMatrices(p, matrices, count);
    launchKernel(isAligned(p, tensors, matrices, count) ? mixed : scalar,
                 dim3(kMuonSlabs, static_cast<unsigned>(count)), kMuonThreads, 0, queueOf(call), p);
  });
}

float scaleOf(const Call &call, int64_t rows, int64_t columns) {
  auto kind = static_cast<UpdateScale>(call.attrs.update_scale);
  return static_cast<float>(updateScale(kind, rows, columns) * call.attrs.extra_scale);
}

/// Calls the kernel with the matrices of a batch.
template <typename Kernel>
void launchBatch(const Call &call, MatrixBatch p, const Batch &batch, Kernel mixed, Kernel scalar) {
  setMatrices(p, batch.matrices, batch.count);
  p.scale = scaleOf(call, p.rows, p.columns);
  p.x.p = static_cast<std::byte *>(p.x.p) +
          batch.at * dtypeBytes(hasNarrowProducts(call) ? DType::BF16 : DType::F32);
  const Tensor *weight = &call.out[p.hasWeight ? 2 : 0];
  const Tensor *whole = &call.in[p.isWhole ? host::kWholeUpdates : 0];
  bool isMixed = isAligned(p, {&call.in[0], &call.out[0], &call.out[1], weight, whole},
                           batch.matrices, batch.count);
  launchKernel(isMixed ? mixed : scalar, dim3(kMuonSlabs, static_cast<unsigned>(batch.count)),
               kMuonThreads, 0, queueOf(call), p);
}

/// Updates the matrices of a pack.
void runPack(const Call &call, const MuonBuffers &buffers, MatrixBatch p,
             std::span<const Batch> batches) {
  p.x.p = buffers.x;
  for (const Batch &batch : batches) {
    if (p.isWhole)
      launchBatch(call, p, batch, squareWhole<Mode::Mixed>, squareWhole<Mode::Scalar>);
    else
      launchBatch(call, p, batch, moveMomentum<Mode::Mixed>, moveMomentum<Mode::Scalar>);
    launchBatch(call, p, batch, makeFactor<Mode::Mixed>, makeFactor<Mode::Scalar>);
  }
  p.x.p = Products(call, batches, buffers).run();
  for (const Batch &batch : batches)
    launchBatch(call, p, batch, applyUpdate<Mode::Mixed>, applyUpdate<Mode::Scalar>);
}

/// Calls `run` with packs of batches. A pack has up to `elements` elements, because its steps are
/// executed together: the tiles of one matrix do not fill a GPU.
template <typename Run>
void forEachPack(std::vector<Matrix> matrices, int64_t elements, const Run &run) {
  std::vector<Batch> pack;
  forEachBatch(matrices, elements, [&](const Matrix *first, int64_t count) {
    Batch batch = {first, count, 0, 0};
    if (!pack.empty()) {
      const Batch &last = pack.back();
      const int64_t side = last.matrices->shortSide();
      batch.at = ceilDiv(last.end(), kChunk) * kChunk;
      batch.product = ceilDiv(last.product + last.count * side * side, kChunk) * kChunk;
    }
    if (!pack.empty() && batch.end() > elements) {
      run(std::span<const Batch>(pack));
      pack.clear();
      batch.at = batch.product = 0;
    }
    pack.push_back(batch);
  });
  if (!pack.empty())
    run(std::span<const Batch>(pack));
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
    p.scale = scaleOf(call, parts[0].rows, parts[0].columns());
    p.x = dataOf(left);
    p.x.p = static_cast<std::byte *>(left.data) + parts[0].at * dtypeBytes(left.dtype);
    bool isMixed = isAligned(p, {&call.out[0], weight, &left}, places.data(), count) &&
                   parts[0].at % kChunk == 0;
    launchKernel(isMixed ? applyUpdate<Mode::Mixed> : applyUpdate<Mode::Scalar>,
                 dim3(kMuonSlabs, static_cast<unsigned>(count)), kMuonThreads, 0, queueOf(call), p);
  };
  forEachBatchOfParts(host::partsToUpdate(call), std::numeric_limits<int64_t>::max(), update);
}

void runMuon(const Call &call, const MuonBuffers &buffers) {
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
  forEachPack(host::matricesToUpdate(call), batchElements(call),
              [&](std::span<const Batch> pack) { runPack(call, buffers, p, pack); });
}

void runMuonUpdate(const Call &call) {
  forRowsOfShard(call, batchOf(call, call.in[2], &call.out[0]),
                 {&call.in[0], &call.in[1], &call.in[2], &call.out[0]}, makeUpdates<Mode::Mixed>,
                 makeUpdates<Mode::Scalar>);
}

} // namespace

SHARDC_KERNEL(MuonUpdate, acceptsAs, runMuonUpdate);
SHARDC_KERNEL(Muon, acceptsAs, withBuffers<runMuon>);

} // namespace shardc::kernels::cuda
