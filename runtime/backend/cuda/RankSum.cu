// out (+)= piece 0 + piece 1 + ... in rank order: what makes a sum over ranks independent of how it
// travelled. Pieces are f32 or bf16 with fp32 sums, or f64; the result may be wider than the
// pieces. Mapping: a thread adds one chunk of 8 elements of all pieces. Limited by memory: each
// piece read once, the result written once (and read once where it accumulates).
#include "kernels/cuda/common.cuh"
#include "runtime/backend/cuda/Kernels.h"

namespace shardc::cuda {
namespace {

using namespace kernels::cuda;
using kernels::Tensor;

struct SumOp {
  Data pieces, own, out;
  int count, index;
  int64_t stride;
  float divisor;

  template <Mode M> __device__ void run(int64_t i, int n) const {
    float sum[kChunk], v[kChunk];
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
    store8<M>(out, i, n, sum);
  }
};

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

} // namespace

cudaError_t loadRankSum() {
  cudaFuncAttributes unused;
  cudaError_t status = cudaFuncGetAttributes(&unused, sumDoubles);
  for (Mode mode : {Mode::Bf16, Mode::Mixed, Mode::Scalar})
    forMode(mode, [&]<Mode M>() {
      if (status == cudaSuccess)
        status = cudaFuncGetAttributes(&unused, mapFlat<M, SumOp>);
    });
  return status;
}

void launchRankSum(const RankSum &s, cudaStream_t stream) {
  if (s.elements == 0)
    return;
  noteOther(stream); // NCCL's collectives come before
  double divisor = s.average ? s.count : 1;
  if (s.inType == DType::F64) {
    launchKernel(sumDoubles, static_cast<unsigned>(ceilDiv(s.elements, 256)), 256, 0, stream,
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
    kernels::Call call;
    call.stream = stream;
    launchFlat(call, mode, op, s.elements);
  }
}

} // namespace shardc::cuda
