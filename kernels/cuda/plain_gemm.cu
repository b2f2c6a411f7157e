// c[m,n] (+)= op(a)[m,k]·op(b)[k,n] + bias[n], f32, bf16 or f16, fp32 sums in the order of k.
// Mapping: a block of 16 by 16 threads computes 16 by 16 elements from tiles of 16 elements along k
// in shared memory, whose bandwidth limits it. Only for small odd extents. Also contains the
// conversions before and after a product whose mixture of types cuBLASLt does not support; these
// are limited by memory.
#include <cuda_fp8.h>

#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kEdge = 16;

/// c = alpha · op(a) · op(b) + beta · c, with an optional bias of columns and an optional matrix
/// that is added.
struct Product {
  Data a, b, bias, c, added;
  int64_t m, n, k;
  float alpha, beta;
  bool transA, transB, hasBias, hasAdded;
};

/// A thread computes one element of c. Elements outside of the operands are read as 0, so the loop
/// over k needs no conditions.
__global__ void __launch_bounds__(kEdge *kEdge) plainGemm(const Product p) {
  awaitPrevious();
  __shared__ float a[kEdge][kEdge + 1], b[kEdge][kEdge + 1];
  int64_t row = static_cast<int64_t>(blockIdx.y) * kEdge + threadIdx.y;
  int64_t col = static_cast<int64_t>(blockIdx.x) * kEdge + threadIdx.x;
  const int64_t batch = blockIdx.z, beginA = batch * p.m * p.k, beginB = batch * p.k * p.n;
  float sum = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += kEdge) {
    int64_t kOfA = k0 + threadIdx.x, kOfB = k0 + threadIdx.y;
    a[threadIdx.y][threadIdx.x] =
        row < p.m && kOfA < p.k
            ? element(p.a, beginA + (p.transA ? kOfA * p.m + row : row * p.k + kOfA))
            : 0.0f;
    b[threadIdx.y][threadIdx.x] =
        col < p.n && kOfB < p.k
            ? element(p.b, beginB + (p.transB ? col * p.k + kOfB : kOfB * p.n + col))
            : 0.0f;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEdge; ++j)
      sum += a[threadIdx.y][j] * b[j][threadIdx.x];
    __syncthreads();
  }
  if (row >= p.m || col >= p.n)
    return;
  const int64_t at = batch * p.m * p.n + row * p.n + col;
  float value = p.alpha * sum + (p.hasBias ? element(p.bias, col) : 0.0f);
  setElement(p.c, at, p.hasAdded ? value + p.beta * element(p.added, at) : value);
}

/// A matrix of 8-bit numbers, and its scales.
struct ScaledOperand {
  const uint8_t *codes;
  const float *scales;
  int64_t rows, cols;
  int64_t rowsOfScale, colsOfScale, scaleDown, scaleRight; ///< shape of blocks; steps of scales
  bool isE5M2;
};

struct ScaledProduct {
  ScaledOperand a, b;
  Data bias, c;
  bool hasBias;
};

__device__ __forceinline__ float numberOf(const ScaledOperand &f, int64_t row, int64_t col) {
  if (row >= f.rows || col >= f.cols)
    return 0.0f;
  __half_raw half =
      __nv_cvt_fp8_to_halfraw(f.codes[row * f.cols + col], f.isE5M2 ? __NV_E5M2 : __NV_E4M3);
  int64_t scale = row / f.rowsOfScale * f.scaleDown + col / f.colsOfScale * f.scaleRight;
  return __half2float(__half(half)) * f.scales[scale];
}

/// The product of 8-bit operands with scales, where b is transposed.
__global__ void __launch_bounds__(kEdge *kEdge) plainScaledGemm(const ScaledProduct p) {
  awaitPrevious();
  __shared__ float a[kEdge][kEdge + 1], b[kEdge][kEdge + 1];
  int64_t row = static_cast<int64_t>(blockIdx.y) * kEdge + threadIdx.y;
  int64_t col = static_cast<int64_t>(blockIdx.x) * kEdge + threadIdx.x;
  int64_t rowOfB = static_cast<int64_t>(blockIdx.x) * kEdge + threadIdx.y;
  float sum = 0;
  for (int64_t k0 = 0; k0 < p.a.cols; k0 += kEdge) {
    int64_t k = k0 + threadIdx.x;
    a[threadIdx.y][threadIdx.x] = numberOf(p.a, row, k);
    b[threadIdx.y][threadIdx.x] = numberOf(p.b, rowOfB, k);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEdge; ++j)
      sum += a[threadIdx.y][j] * b[threadIdx.x][j];
    __syncthreads();
  }
  if (row < p.a.rows && col < p.b.rows)
    setElement(p.c, row * p.b.rows + col, sum + (p.hasBias ? element(p.bias, col) : 0.0f));
}

/// Converts an fp32 product to the type of the result, and adds the bias.
struct FinishOp {
  Data product, bias, c;
  int64_t cols;
  bool hasBias;
  template <Mode M> __device__ void run(int64_t row, int64_t c0, int n) const {
    float v[kChunk], term[kChunk] = {};
    load8<M>(product, row * cols + c0, n, v);
    if (hasBias)
      load8<M>(bias, c0, n, term);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] += term[j];
    store8<M>(c, row * cols + c0, n, v);
  }
};

/// Returns 32 pseudorandom bits, a hash of i.
__device__ __forceinline__ uint32_t mixed(uint32_t i) {
  uint32_t bits = i * 2654435761u;
  bits = (bits ^ bits >> 15) * 2246822519u;
  return bits ^ bits >> 13;
}

/// Fills x with uniform numbers between -0.05 and 0.05.
struct RandomOp {
  Data x;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      uint32_t bits = mixed(static_cast<uint32_t>(i + j));
      v[j] = (static_cast<float>(bits & 0xffff) / 65536.0f - 0.5f) * 0.1f;
    }
    store8<M>(x, i, n, v);
  }
};

/// Fills x with normal numbers, by the method of Box and Muller.
struct NormalOp {
  Data x;
  float std;
  uint32_t key;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      uint32_t bits = mixed(static_cast<uint32_t>(i + j) ^ key), more = mixed(bits + key);
      float radius = sqrtf(-2.0f * logf((static_cast<float>(bits >> 8) + 0.5f) / 16777216.0f));
      v[j] = std * radius * cospif(static_cast<float>(more >> 8) / 8388608.0f);
    }
    store8<M>(x, i, n, v);
  }
};

/// Fills memory with bytes that are small numbers both as e4m3 and as e5m2.
struct RandomBytesOp {
  uint8_t *x;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    for (int j = 0; j < n; ++j) {
      uint32_t bits = static_cast<uint32_t>(i + j) * 2654435761u;
      bits = (bits ^ bits >> 15) * 2246822519u;
      x[i + j] = static_cast<uint8_t>((bits >> 13 & 0x3fu) | (bits >> 24 & 0x80u));
    }
  }
};

/// Converts elements from `offset` on to the type of `to`.
struct ToFloatsOp {
  Data from, to;
  int64_t offset;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk];
    load8<M>(from, offset + i, n, v);
    store8<M>(to, i, n, v);
  }
};

ScaledOperand operandOf(const void *codes, DType type, const float *scales,
                        std::optional<ScaleBlocks> blocks, int64_t rows, int64_t cols) {
  ScaledOperand operand = {static_cast<const uint8_t *>(codes), scales, rows, cols};
  operand.isE5M2 = type == DType::F8E5M2;
  Extents block = blocks ? blockOf(*blocks) : Extents{rows, cols};
  operand.rowsOfScale = block.rows, operand.colsOfScale = block.cols;
  if (blocks == ScaleBlocks::Rows128)
    operand.scaleDown = 1, operand.scaleRight = rows;
  else
    operand.scaleDown = strideOfSquares(cols), operand.scaleRight = 1;
  return operand;
}

void launchPlainScaled(const Gemm &g, Queue &queue) {
  ScaledProduct p = {operandOf(g.a, g.in, g.scaleA, g.blocksA, g.m, g.k),
                     operandOf(g.b, g.inB, g.scaleB, g.blocksB, g.n, g.k)};
  p.bias = {const_cast<void *>(g.bias), formatOf(g.out)};
  p.c = {g.c, formatOf(g.out), g.accumulate};
  p.hasBias = g.bias != nullptr;
  dim3 grid(static_cast<unsigned>(ceilDiv(g.n, kEdge)), static_cast<unsigned>(ceilDiv(g.m, kEdge)));
  launchKernel(plainScaledGemm, grid, dim3(kEdge, kEdge), 0, queue, p);
}

} // namespace

void launchPlainGemm(const Gemm &g, Queue &queue) {
  if (g.isScaled)
    return launchPlainScaled(g, queue);
  auto data = [](const void *address, DType type) {
    return Data{const_cast<void *>(address), formatOf(type)};
  };
  Product p = {data(g.a, g.in), data(g.b, g.in), data(g.bias, g.out), data(g.c, g.out)};
  p.m = g.m, p.n = g.n, p.k = g.k;
  p.transA = g.transA, p.transB = g.transB, p.hasBias = g.bias != nullptr;
  p.added = data(g.added, g.out), p.hasAdded = g.added != nullptr;
  p.alpha = g.alpha, p.beta = g.beta;
  p.c.accumulate = g.accumulate && !p.hasAdded;
  dim3 grid(static_cast<unsigned>(ceilDiv(g.n, kEdge)), static_cast<unsigned>(ceilDiv(g.m, kEdge)),
            static_cast<unsigned>(g.batches));
  launchKernel(plainGemm, grid, dim3(kEdge, kEdge), 0, queue, p);
}

void launchFinishProduct(const float *product, const Tensor *bias, const Tensor &c, Queue &queue) {
  Call call;
  call.stream = &queue;
  Tensor from = c;
  from.data = const_cast<float *>(product), from.dtype = DType::F32;
  const Tensor &term = bias ? *bias : c;
  FinishOp op = {dataOf(from), dataOf(term), dataOf(c), c.cols(), bias != nullptr};
  launchRows(call, modeOf({&from, &term, &c}, c.cols()), op, c.rows(), c.cols());
}

void launchRandom(void *data, DType type, int64_t count, Queue &queue) {
  Call call;
  call.stream = &queue;
  Tensor x;
  x.data = data, x.dtype = type;
  if (dtypeBytes(type) == 1)
    return launchFlat(call, Mode::Scalar, RandomBytesOp{static_cast<uint8_t *>(data)}, count);
  launchFlat(call, modeOf({&x}, 0), RandomOp{dataOf(x)}, count);
}

void launchNormal(void *data, DType type, int64_t count, double std, uint32_t key, Queue &queue) {
  Call call;
  call.stream = &queue;
  Tensor x;
  x.data = data, x.dtype = type;
  NormalOp op = {dataOf(x), static_cast<float>(std), key};
  launchFlat(call, modeOf({&x}, 0), op, count);
}

void launchToFloats(const Tensor &from, int64_t offset, int64_t count, float *to, Queue &queue) {
  Call call;
  call.stream = &queue;
  Tensor target;
  target.data = to;
  Mode mode = offset % kChunk == 0 ? modeOf({&from, &target}, 0) : Mode::Scalar;
  launchFlat(call, mode, ToFloatsOp{dataOf(from), dataOf(target), offset}, count);
}

} // namespace shardc::kernels::cuda
