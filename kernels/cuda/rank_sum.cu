// out (+)= piece 0 + piece 1 + ... in rank order, so that a sum over ranks does not depend on its
// transport. Pieces are f32, bf16 or f16 with fp32 sums, or f64. The result may be wider than the
// pieces. Mapping: a thread adds one chunk of 8 elements of all pieces. Limited by memory: each
// piece is read once, the result is written once (and read once if it accumulates).
//
// ss = sum of squares of the result's valid elements needs no additional pass over memory. If it is
// requested, threads square what they have stored, with fp64 products. A block processes up to
// eight tiles of 2048 elements and writes one partial sum; one block adds these in order.
//
// H200, 2026-11, four pieces of 54.5 million elements, in TB/s (a copy reaches 4.24): bf16 into
// bf16 3.30, into f32 3.26, added to f32 3.75, f32 added to f32 4.38 (which reads more than it
// writes); with squares 2.46, 2.55, 3.01 and 3.83.
#include "kernels/cuda/RankSum.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

struct SumOp {
  Data pieces, own, out;
  int count, index;
  int64_t stride;
  float divisor;

  /// Adds the pieces of elements [i, i + n).
  template <Mode M> __device__ void add(int64_t i, int n, float (&sum)[kChunk]) const {
    float v[kChunk];
    for (int p = 0; p < count; ++p) {
      if (p == index)
        load8<M>(own, i, n, v);
      else
        load8<M>(pieces, p * stride + i, n, v);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        sum[j] = p == 0 ? v[j] : sum[j] + v[j];
    }
    if (divisor != 1.0f)
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        sum[j] /= divisor;
  }

  template <Mode M> __device__ void run(int64_t i, int n) const {
    float sum[kChunk];
    add<M>(i, n, sum);
    store8<M>(out, i, n, sum);
  }
};

constexpr int kRangesMax = 224; ///< all ranges are launch parameters, within 4 KiB

/// Elements [begin, end) of a sum, and which of them are squared.
struct SquaredSum {
  SumOp sum;
  ElementRange valid[kRangesMax];
  int count;
  bool isFirst; ///< first launch of the sum: there are no partial sums yet
  int64_t begin, end;

  /// Stores the sum; v becomes the value in the result.
  template <Mode M> __device__ void store(int64_t i, int n, float (&v)[kChunk]) const {
    sum.add<M>(i, n, v);
    if (sum.out.accumulate) {
      float old[kChunk];
      load8<M>(sum.out, i, n, old);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = old[j] + v[j];
    }
    store8<M>(Data{sum.out.p, sum.out.format, false}, i, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = rounded(sum.out, v[j]);
  }

  /// Adds the squares of the valid elements of [i, i + 8) to `total`. `at` is the first range that
  /// does not end before i.
  __device__ void square(int64_t i, int at, const float (&v)[kChunk], double &total) const {
    for (; at < count && valid[at].begin < i + kChunk; ++at) {
      bool isWhole = valid[at].begin <= i && i + kChunk <= valid[at].end;
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        if (isWhole || (i + j >= valid[at].begin && i + j < valid[at].end))
          total = fma(static_cast<double>(v[j]), static_cast<double>(v[j]), total);
    }
  }
};
static_assert(sizeof(SquaredSum) + sizeof(double *) <= 4096);

template <Mode M>
__global__ void __launch_bounds__(256)
    sumAndSquare(const __grid_constant__ SquaredSum op, double *partials) {
  awaitPrevious();
  double total[1] = {0.0};
  int at = 0;
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  int64_t i = op.begin + (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
  for (; i < op.end; i += step) {
    float v[kChunk];
    op.store<M>(i, upToChunk(op.end - i), v);
    while (at < op.count && op.valid[at].end <= i)
      ++at;
    op.square(i, at, v, total[0]);
  }
  blockSum(total);
  if (threadIdx.x == 0)
    partials[blockIdx.x] = op.isFirst ? total[0] : partials[blockIdx.x] + total[0];
}

__global__ void __launch_bounds__(1024)
    addSquares(const double *partials, int64_t count, double *squares) {
  awaitPrevious();
  double total[1] = {0.0};
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    total[0] += partials[i];
  blockSum(total);
  if (threadIdx.x == 0)
    *squares = total[0];
}

__global__ void __launch_bounds__(256)
    sumDoubles(const double *pieces, const double *own, double *out, int count, int index,
               int64_t stride, int64_t elements, double divisor, bool accumulate) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements)
    return;
  double sum = 0;
  for (int p = 0; p < count; ++p) {
    double value = p == index ? own[i] : pieces[p * stride + i];
    sum = p == 0 ? value : sum + value;
  }
  out[i] = (accumulate ? out[i] : 0.0) + sum / divisor;
}

/// Launches for as many ranges as the parameters of a launch hold, repeatedly. The next launch
/// begins at the first range that did not fit, at a whole chunk.
void launchSquaredSum(const RankSum &s, const SumOp &sum, Mode mode, Queue &queue) {
  int64_t blocks = squareSumsOf(s.elements);
  SquaredSum op = {};
  op.sum = sum;
  size_t next = 0;
  for (op.end = 0; op.end < s.elements;) {
    op.begin = op.end, op.isFirst = op.begin == 0;
    while (next < s.valid.size() && s.valid[next].end <= op.begin)
      ++next;
    std::span<const ElementRange> rest = s.valid.subspan(next);
    op.count = static_cast<int>(std::min<size_t>(rest.size(), kRangesMax));
    std::copy_n(rest.begin(), op.count, op.valid);
    bool isLast = rest.size() <= kRangesMax;
    op.end = isLast ? s.elements : rest[kRangesMax].begin / kChunk * kChunk;
    forMode(mode, [&]<Mode M>() {
      launchKernel(sumAndSquare<M>, static_cast<unsigned>(blocks), 256, 0, queue, op, s.partials);
    });
  }
  launchKernel(addSquares, 1, 1024, 0, queue, static_cast<const double *>(s.partials), blocks,
               s.squares);
}

} // namespace

cudaError_t loadRankSum() {
  cudaFuncAttributes unused;
  cudaError_t status = cudaFuncGetAttributes(&unused, sumDoubles);
  if (status == cudaSuccess)
    status = cudaFuncGetAttributes(&unused, addSquares);
  for (Mode mode : {Mode::Bf16, Mode::F16, Mode::Mixed, Mode::Scalar})
    forMode(mode, [&]<Mode M>() {
      if (status == cudaSuccess)
        status = cudaFuncGetAttributes(&unused, mapFlat<M, SumOp>);
      if (status == cudaSuccess)
        status = cudaFuncGetAttributes(&unused, sumAndSquare<M>);
    });
  return status;
}

/// Chooses the kernel by the element type, and 16-byte accesses if pieces begin at multiples of a
/// chunk.
void launchRankSum(const RankSum &s, Queue &queue) {
  if (s.elements == 0)
    return;
  noteOther(queue); // NCCL's collectives precede it
  double divisor = s.average ? s.count : 1;
  if (s.inType == DType::F64) {
    launchKernel(sumDoubles, static_cast<unsigned>(ceilDiv(s.elements, 256)), 256, 0, queue,
                 static_cast<const double *>(s.pieces), static_cast<const double *>(s.own),
                 static_cast<double *>(s.out), s.count, s.index, s.stride, s.elements, divisor,
                 s.accumulate);
  } else {
    auto tensor = [](const void *data, DType type) {
      Tensor t;
      t.data = const_cast<void *>(data), t.dtype = type;
      return t;
    };
    Tensor pieces = tensor(s.pieces, s.inType), own = tensor(s.own, s.inType);
    Tensor out = tensor(s.out, s.outType);
    out.accumulate = s.accumulate;
    SumOp op = {dataOf(pieces),
                dataOf(own),
                dataOf(out),
                s.count,
                s.index,
                s.stride,
                static_cast<float>(divisor)};
    bool whole = s.count == 1 || s.stride % kChunk == 0;
    Mode mode = whole ? modeOf({&pieces, &own, &out}, 0) : Mode::Scalar;
    if (s.squares)
      return launchSquaredSum(s, op, mode, queue);
    Call call;
    call.stream = &queue;
    launchFlat(call, mode, op, s.elements);
  }
}

} // namespace shardc::kernels::cuda
