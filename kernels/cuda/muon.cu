// Muon on a shard of whole matrices (kernels/host/Muon.cpp says what it computes). Matrices of one
// shape are a batch: one kernel moves the momentum and squares the updates, one divides these by
// their norms and leaves them behind each other in the type of the products, cuBLASLt's batched
// products take the steps, and one kernel updates the weights. Rows that are more than the columns
// are not turned: the products take the matrix as its transpose. Squares are added in an order that
// only the shape determines.
// Mapping: a block has 256 threads, of 8 elements each, and takes chunks of one matrix in turns.
// These kernels are limited by memory; with products of bf16 and a weight in bf16 they read 18 and
// write 12 bytes an element, 6 more with `nesterov`. The products are limited by arithmetic.
#include <algorithm>
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
  int64_t begin; ///< element of the shard
  int32_t take, period;
  float lrMult, wdMult;
  int32_t isDecoupled;
};

struct MatrixBatch {
  Data g, m, x, weight;
  float *w;
  const StepState *state;
  double *squares; ///< [matrix, slab]
  int64_t rows, columns;
  float momentum, oneMinusMomentum, weightDecay, scale;
  bool nesterov, decoupled, hasWeight;
  MatrixItem item[kNsBatchMatrices];
};
static_assert(sizeof(MatrixBatch) <= 4096);

/// A chunk of a matrix: where it lies in the shard and in x, and how many elements it has.
struct ChunkPlace {
  int64_t inShard, inX;
  int n;
};

__device__ __forceinline__ int64_t chunksOf(const MatrixBatch &p) {
  return p.rows * ((p.columns + kChunk - 1) / kChunk);
}

__device__ __forceinline__ ChunkPlace placeOf(const MatrixBatch &p, int64_t chunk) {
  const MatrixItem &item = p.item[blockIdx.y];
  const int64_t ofRow = (p.columns + kChunk - 1) / kChunk;
  const int64_t row = chunk / ofRow, column = chunk % ofRow * kChunk;
  const int64_t inTensor = row / item.take * item.period + row % item.take;
  return {item.begin + inTensor * p.columns + column,
          (static_cast<int64_t>(blockIdx.y) * p.rows + row) * p.columns + column,
          upToChunk(p.columns - column)};
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

template <Mode M>
__global__ void __launch_bounds__(kMuonThreads)
    moveMomentum(const __grid_constant__ MatrixBatch p) {
  awaitPrevious();
  const bool applied = p.state->skip == 0;
  double sum[1] = {0.0};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float g[kChunk], m[kChunk];
    gradientOf<M>(p, at, g);
    load8<M>(p.m, at.inShard, at.n, m);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      m[j] = m[j] + p.oneMinusMomentum * (g[j] - m[j]);
      float update = p.nesterov ? g[j] + p.momentum * (m[j] - g[j]) : m[j];
      if (j < at.n)
        sum[0] = fma(static_cast<double>(update), static_cast<double>(update), sum[0]);
    }
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
    load8<M>(p.m, at.inShard, at.n, update);
    if (p.nesterov) {
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
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float w[kChunk], x[kChunk];
    load8<M>(master, at.inShard, at.n, w);
    if (applied) {
      load8<M>(p.x, at.inX, at.n, x);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        w[j] -= lr * (x[j] * p.scale + decay * w[j]);
      store8<M>(master, at.inShard, at.n, w);
    }
    if (p.hasWeight)
      store8<M>(p.weight, at.inShard, at.n, w);
  }
}

bool hasNarrowProducts(const Call &call) {
  return static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
}

/// Elements of a batch, at most.
int64_t batchElements(const Call &call) {
  return std::max(call.attrs.largest_matrix, std::min(call.in[0].numel(), kNsBatchElements));
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
    const bool isTurned = shape_.isTurned();
    for (int64_t i = 0; i < call_.attrs.ns_steps; ++i) {
      NsStep step = nsStep(static_cast<NsCoefficients>(call_.attrs.ns_coefficients), i);
      Gemm gram = product(r, r, c, x, x, buffers_.square);
      gram.transA = isTurned, gram.transB = !isTurned;
      enqueue(gram);
      std::byte *mixed = buffers_.square;
      float factor = step.b;
      if (step.c != 0) {
        Gemm polynomial = product(r, r, r, mixed, mixed, buffers_.mixed);
        enqueue(sumOf(polynomial, step.c, step.b, mixed));
        mixed = buffers_.mixed, factor = 1;
      }
      Gemm turned = product(c, r, r, x, mixed, next), straight = product(r, c, r, mixed, x, next);
      enqueue(sumOf(isTurned ? turned : straight, factor, step.a, x));
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

  const Call &call_;
  const Matrix &shape_;
  int64_t count_;
  const MuonBuffers &buffers_;
};

/// What all batches of a call have in common.
MatrixBatch batchOf(const Call &call, const MuonBuffers &buffers) {
  const Attrs &attrs = call.attrs;
  MatrixBatch p = {};
  p.g = dataOf(call.in[0]), p.m = dataOf(call.out[1]);
  p.w = static_cast<float *>(call.out[0].data);
  p.hasWeight = call.outCount > 2;
  if (p.hasWeight)
    p.weight = dataOf(call.out[2]);
  p.state = static_cast<const StepState *>(call.in[3].data);
  p.squares = buffers.squares;
  p.x = {buffers.x, hasNarrowProducts(call) ? Format::Bf16 : Format::F32};
  p.momentum = static_cast<float>(attrs.momentum);
  p.oneMinusMomentum = static_cast<float>(1.0 - attrs.momentum);
  p.weightDecay = static_cast<float>(attrs.weight_decay);
  p.nesterov = attrs.nesterov, p.decoupled = attrs.decoupled;
  return p;
}

void runBatch(const Call &call, const MuonBuffers &buffers, const Matrix *matrices, int64_t count) {
  const Matrix &shape = matrices[0];
  MatrixBatch p = batchOf(call, buffers);
  p.rows = shape.rows, p.columns = shape.columns;
  p.scale = static_cast<float>(
      updateScale(static_cast<UpdateScale>(call.attrs.update_scale), p.rows, p.columns) *
      call.attrs.extra_scale);
  for (int64_t i = 0; i < count; ++i) {
    const Matrix &matrix = matrices[i];
    p.item[i] = {matrix.begin,
                 static_cast<int32_t>(matrix.take),
                 static_cast<int32_t>(matrix.period),
                 matrix.range->lrMult,
                 matrix.range->wdMult,
                 matrix.range->isDecoupled ? 1 : 0};
  }
  const Tensor *weight = &call.out[p.hasWeight ? 2 : 0];
  Mode mode = modeOf({&call.in[0], &call.out[0], &call.out[1], weight}, p.columns);
  bool isAligned = std::all_of(matrices, matrices + count,
                               [](const Matrix &matrix) { return matrix.begin % kChunk == 0; });
  if (mode != Mode::Scalar) // masters and momentum are fp32 beside gradients of any type
    mode = isAligned ? Mode::Mixed : Mode::Scalar;
  dim3 grid(kMuonSlabs, static_cast<unsigned>(count));
  auto launch = [&](auto mixed, auto scalar) {
    launchKernel(mode == Mode::Mixed ? mixed : scalar, grid, kMuonThreads, 0, queueOf(call), p);
  };
  launch(moveMomentum<Mode::Mixed>, moveMomentum<Mode::Scalar>);
  launch(makeFactor<Mode::Mixed>, makeFactor<Mode::Scalar>);
  p.x.p = Products(call, shape, count, buffers).run();
  launch(applyUpdate<Mode::Mixed>, applyUpdate<Mode::Scalar>);
}

void runMuon(const Call &call) {
  Scratch scratch(call);
  MuonBuffers buffers(call, scratch);
  std::vector<Matrix> matrices = host::matricesOfShard(call);
  auto shapeOf = [](const Matrix &matrix) { return std::pair(matrix.rows, matrix.columns); };
  std::stable_sort(matrices.begin(), matrices.end(),
                   [&](const Matrix &a, const Matrix &b) { return shapeOf(a) < shapeOf(b); });
  const auto total = static_cast<int64_t>(matrices.size());
  for (int64_t begin = 0; begin < total;) {
    const Matrix &first = matrices[static_cast<size_t>(begin)];
    int64_t most = std::clamp<int64_t>(batchElements(call) / first.numel(), 1, kNsBatchMatrices);
    int64_t end = begin + 1;
    while (end < total && end - begin < most &&
           shapeOf(matrices[static_cast<size_t>(end)]) == shapeOf(first))
      ++end;
    runBatch(call, buffers, &first, end - begin);
    begin = end;
  }
}

} // namespace

const Kernel kMuon = {"muon_cuda", runMuon, acceptsAs<&host::kMuon>, workspaceOf<MuonBuffers>};

} // namespace shardc::kernels::cuda
