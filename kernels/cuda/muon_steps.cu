// Newton-Schulz steps on matrices of which ranks have parts; kernels/host/MuonSteps.cpp defines
// them. Parts of one shape are contiguous, and so are their sums, so that cuBLASLt's batched
// products access them in place. Sums are fp32, even those of bf16 products. Mapping of the other
// kernels: threads loop over chunks of a part, as in muon.cu; limited by memory.
#include <cmath>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/muon.cuh"

namespace shardc::kernels::cuda {
namespace {

/// Adds the partial squares of all slabs of each matrix, times `share`.
__global__ void __launch_bounds__(kMuonSlabs)
    addSlabs(const double *squares, float *sums, float share) {
  awaitPrevious();
  double sum[1] = {squares[int64_t{kMuonSlabs} * blockIdx.x + threadIdx.x]};
  blockSum(sum);
  if (threadIdx.x == 0)
    sums[blockIdx.x] = static_cast<float>(sum[0]) * share;
}

/// Writes the parts to p.x, divided by the norms whose squares are in `sums`.
template <Mode M>
__global__ void __launch_bounds__(kMuonThreads)
    divideByNorms(const __grid_constant__ MatrixBatch p, const float *sums) {
  awaitPrevious();
  const float norm = fmaxf(sqrtf(sums[blockIdx.y]), kNsNormMin);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < chunksOf(p);
       i += int64_t{kMuonSlabs} * kMuonThreads) {
    const ChunkPlace at = placeOf(p, i);
    float x[kChunk];
    load8<M>(p.u, at.inShard, at.n, x);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      x[j] = x[j] / norm;
    store8<M>(p.x, at.inX, at.n, x);
  }
}

__global__ void __launch_bounds__(kMuonThreads)
    roundSums(const float *sums, __nv_bfloat16 *rounded, int64_t n) {
  awaitPrevious();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * kMuonThreads)
    rounded[i] = __float2bfloat16_rn(sums[i]);
}

struct SumsBuffers {
  double *squares;
  std::byte *gemm;

  SumsBuffers(const Call &, Scratch &scratch)
      : squares(scratch.take<double>(kNsBatchMatrices * kMuonSlabs)),
        gemm(scratch.take<std::byte>(kGemmWorkspace)) {}
};

/// Upper bound of the number of elements in the products of a batch.
int64_t batchProducts(const Call &call) {
  return std::max(call.attrs.largest_matrix, std::min(call.in[2].numel(), kNsBatchElements));
}

struct StepBuffers {
  std::byte *square, *mixed, *gemm;

  StepBuffers(const Call &call, Scratch &scratch) {
    int64_t bytes =
        batchProducts(call) * dtypeBytes(hasNarrowProducts(call) ? DType::BF16 : DType::F32);
    square = scratch.take<std::byte>(bytes), mixed = scratch.take<std::byte>(bytes);
    gemm = scratch.take<std::byte>(kGemmWorkspace);
  }
};

std::byte *at(const Tensor &tensor, int64_t element) {
  return static_cast<std::byte *>(tensor.data) + element * dtypeBytes(tensor.dtype);
}

/// Clears the result from element `begin` on.
void clearFrom(const Call &call, int64_t begin) {
  const Tensor &to = call.out[0];
  if (begin == to.numel())
    return;
  Queue &queue = queueOf(call);
  cudaMemsetAsync(at(to, begin), 0,
                  static_cast<size_t>((to.numel() - begin) * dtypeBytes(to.dtype)),
                  streamOf(queue));
  noteOther(queue);
}

float shareOf(const Call &call, const MatrixPart &part) {
  return static_cast<float>(part.parts) / static_cast<float>(call.attrs.sum_ranks);
}

/// Calls `launch` with the parts described as matrices of operand 0.
template <typename Launch>
void launchParts(const Call &call, MatrixBatch p, std::span<const MatrixPart> parts,
                 std::initializer_list<const Tensor *> tensors, const Launch &launch) {
  std::vector<Matrix> places;
  for (const MatrixPart &part : parts)
    places.push_back(part.place);
  const auto count = static_cast<int64_t>(places.size());
  p.u = dataOf(call.in[0]);
  setMatrices(p, places.data(), count);
  launch(p, isAligned(p, tensors, places.data(), count) && parts[0].at % kChunk == 0,
         dim3(kMuonSlabs, static_cast<unsigned>(count)));
}

void sumSquares(const Call &call, const SumsBuffers &buffers, std::span<const MatrixPart> parts,
                int64_t first) {
  MatrixBatch p = {};
  p.squares = buffers.squares;
  launchParts(call, p, parts, {&call.in[0]}, [&](const MatrixBatch &each, bool mixed, dim3 grid) {
    launchKernel(mixed ? squareWhole<Mode::Mixed> : squareWhole<Mode::Scalar>, grid, kMuonThreads,
                 0, queueOf(call), each);
  });
  launchKernel(addSlabs, dim3(static_cast<unsigned>(parts.size())), kMuonSlabs, 0, queueOf(call),
               static_cast<const double *>(buffers.squares),
               static_cast<float *>(call.out[0].data) + first, shareOf(call, parts[0]));
}

/// Computes X·Xᵀ if parts have columns of matrices, or whole matrices; otherwise Xᵀ·X.
void multiplyByTransposes(const Call &call, const SumsBuffers &buffers,
                          std::span<const MatrixPart> parts) {
  const MatrixPart &part = parts[0];
  MatrixProducts products(call, static_cast<int64_t>(parts.size()), buffers.gemm);
  const int64_t depth = part.isOfRows() ? part.place.columns : part.place.rows;
  std::byte *x = at(call.in[0], part.at), *sums = at(call.out[0], part.product);
  Gemm gram = products.product(part.side(), part.side(), depth, x, x, sums);
  gram.transA = !part.isOfRows(), gram.transB = part.isOfRows();
  gram.out = DType::F32;
  if (const float share = shareOf(call, part); share != 1.0f)
    gram = MatrixProducts::sumOf(gram, share, 0.0f, sums);
  MatrixProducts::enqueueSymmetric(call, {&gram, 1}, buffers.gemm);
}

void runMuonSums(const Call &call, const SumsBuffers &buffers) {
  clearFrom(call, 0);
  forEachBatchOfParts(host::partsOfSteps(call), kNsBatchElements,
                      [&](std::span<const MatrixPart> parts, int64_t first) {
                        if (call.attrs.ns_step == 0)
                          sumSquares(call, buffers, parts, first);
                        else
                          multiplyByTransposes(call, buffers, parts);
                      });
}

void divideParts(const Call &call, std::span<const MatrixPart> parts, int64_t first) {
  MatrixBatch p = {};
  p.x = dataOf(call.out[0]);
  p.x.p = at(call.out[0], parts[0].at);
  launchParts(call, p, parts, {&call.in[0], &call.out[0]},
              [&](const MatrixBatch &each, bool mixed, dim3 grid) {
                launchKernel(mixed ? divideByNorms<Mode::Mixed> : divideByNorms<Mode::Scalar>, grid,
                             kMuonThreads, 0, queueOf(call), each,
                             static_cast<const float *>(call.in[2].data) + first);
              });
}

void takeStep(const Call &call, const StepBuffers &buffers, std::span<const MatrixPart> parts) {
  const MatrixPart &part = parts[0];
  const auto count = static_cast<int64_t>(parts.size());
  const int64_t r = part.place.rows, c = part.place.columns, side = part.side();
  const NsStep step =
      nsStep(static_cast<NsCoefficients>(call.attrs.ns_coefficients), call.attrs.ns_step - 1);
  MatrixProducts products(call, count, buffers.gemm);
  std::byte *square = at(call.in[2], part.product);
  if (hasNarrowProducts(call)) {
    const int64_t n = count * side * side;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceilDiv(n, kMuonThreads), 2048));
    launchKernel(roundSums, dim3(blocks), kMuonThreads, 0, queueOf(call),
                 reinterpret_cast<const float *>(square),
                 reinterpret_cast<__nv_bfloat16 *>(buffers.square), n);
    square = buffers.square;
  }
  const std::byte *mixed = square;
  float factor = step.b;
  if (step.c != 0) {
    const Gemm polynomial = MatrixProducts::sumOf(
        products.product(side, side, side, square, square, buffers.mixed), step.c, step.b, square);
    MatrixProducts::enqueueSymmetric(call, {&polynomial, 1}, buffers.gemm);
    mixed = buffers.mixed, factor = 1;
  }
  std::byte *x = at(call.in[0], part.at), *y = at(call.out[0], part.at);
  Gemm left = products.product(r, c, r, mixed, x, y),
       right = products.product(r, c, c, x, mixed, y);
  products.enqueue(MatrixProducts::sumOf(part.isOfRows() ? left : right, factor, step.a, x));
}

void runMuonStep(const Call &call, const StepBuffers &buffers) {
  const std::vector<MatrixPart> all = host::partsOfSteps(call);
  clearFrom(call, all.empty() ? 0 : all.back().at + all.back().place.numel());
  forEachBatchOfParts(all, batchProducts(call),
                      [&](std::span<const MatrixPart> parts, int64_t first) {
                        if (call.attrs.ns_step == 0)
                          divideParts(call, parts, first);
                        else
                          takeStep(call, buffers, parts);
                      });
}

} // namespace

SHARDC_KERNEL(MuonSums, acceptsAs, withBuffers<runMuonSums>);
SHARDC_KERNEL(MuonStep, acceptsAs, withBuffers<runMuonStep>);

} // namespace shardc::kernels::cuda
