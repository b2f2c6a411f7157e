// Elementwise ops: add c = a + b, bias_add y[t,:] = x[t,:] + bias, cast y = x in another type, fill
// x = value. Data are f32, bf16 or f16 each. add and cast may accumulate (old + value in fp32,
// rounded once). Mapping: a thread processes one chunk of 8 elements; flat arrays are divided into
// blocks of 256 threads, and bias_add has one block per row. Limited by memory: each operand and
// result is accessed once. H200, 2026-11: cast 4.1, bias_add 3.7, add 3.5 of a copy's 4.24 TB/s.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

struct Sum {
  template <Mode M> __device__ void apply(float (&v)[2][kChunk]) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[0][j] += v[1][j];
  }
};

void runAdd(const Call &call) { launchPointwise<2>(call, Sum{}); }

/// y = x + bias, which is the same in every row.
struct BiasAddOp {
  Data x, bias, y;
  int64_t cols;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float v[kChunk], term[kChunk];
    load8<M>(x, row * cols + c, n, v);
    load8<M>(bias, c, n, term);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] += term[j];
    store8<M>(y, row * cols + c, n, v);
  }
};

void runBiasAdd(const Call &call) {
  const Tensor &x = call.in[0], &bias = call.in[1], &y = call.out[0];
  BiasAddOp op = {dataOf(x), dataOf(bias), dataOf(y), y.cols()};
  launchRows(call, modeOf({&x, &bias, &y}, y.cols()), op, y.rows(), y.cols());
}

struct Scaled {
  float scale;
  template <Mode M> __device__ void apply(float (&v)[1][kChunk]) const {
#pragma unroll
    for (float &x : v[0])
      x *= scale;
  }
};

void runCast(const Call &call) {
  launchPointwise<1>(call, Scaled{static_cast<float>(call.attrs.scale)});
}

/// A thread stores 16 bytes. The first threads also store the elements after the last whole 16
/// bytes.
template <typename T>
__global__ void __launch_bounds__(256) fillWith(T *x, T value, int64_t numel) {
  awaitPrevious();
  constexpr int kEach = 16 / sizeof(T);
  int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t whole = numel / kEach;
  if (thread < whole) {
    union {
      T values[kEach];
      uint4 bits;
    } chunk;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      chunk.values[j] = value;
    reinterpret_cast<uint4 *>(x)[thread] = chunk.bits;
  }
  if (thread < numel - whole * kEach)
    x[whole * kEach + thread] = value;
}

template <typename T>
__global__ void __launch_bounds__(256) fillEach(T *x, T value, int64_t numel) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < numel)
    x[i] = value;
}

template <typename T> void fillTensor(const Call &call, T value) {
  const Tensor &x = call.out[0];
  auto *data = static_cast<T *>(x.data);
  bool isAligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  int64_t each = isAligned ? 256 * 16 / static_cast<int64_t>(sizeof(T)) : 256;
  auto blocks = static_cast<unsigned>(ceilDiv(x.numel(), each));
  launchKernel(isAligned ? fillWith<T> : fillEach<T>, blocks, 256, 0, queueOf(call), data, value,
               x.numel());
}

void runFill(const Call &call) {
  double value = call.attrs.value;
  switch (call.out[0].dtype) {
  case DType::F32:
    return fillTensor(call, static_cast<float>(value));
  case DType::BF16:
    return fillTensor(call, toBF16(static_cast<float>(value)).bits);
  case DType::F16:
    return fillTensor(call, toF16(static_cast<float>(value)).bits);
  case DType::F64:
    return fillTensor(call, value);
  case DType::I32:
    return fillTensor(call, static_cast<int32_t>(value));
  default:
    return fillTensor(call, static_cast<int64_t>(value));
  }
}

} // namespace

SHARDC_KERNEL(Add, acceptsAs, runAdd);
SHARDC_KERNEL(BiasAdd, acceptsAs, runBiasAdd);
SHARDC_KERNEL(Cast, acceptsAs, runCast);
SHARDC_KERNEL(Fill, acceptsAs, runFill);

} // namespace shardc::kernels::cuda
