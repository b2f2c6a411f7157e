// Building blocks of the hand-written kernels: loads and stores in chunks of eight elements,
// reductions in a fixed order, launches. A thread moves 16 bytes of bf16 or f16, or 32 bytes of
// fp32, at a time. Arithmetic is fp32 and results are rounded once, like in the host kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

inline constexpr int kChunk = 8; ///< elements that a thread moves at a time
inline constexpr int kWarp = 32;

/// A tensor in one of the types in which models compute.
enum class Format : uint8_t { F32, Bf16, F16 };

inline Format formatOf(DType type) {
  return type == DType::BF16 ? Format::Bf16 : type == DType::F16 ? Format::F16 : Format::F32;
}

/// A tensor as kernels address it: its elements, their type, and whether stores add to them.
struct Data {
  void *p = nullptr;
  Format format = Format::F32;
  bool accumulate = false; ///< results only
};

inline Data dataOf(const Tensor &t) { return {t.data, formatOf(t.dtype), t.accumulate}; }

/// How a kernel instance accesses memory: in whole chunks of bf16 only, of f16 only, or of any
/// type; or in single elements, if row sizes or addresses are not multiples of 16 bytes.
enum class Mode { Bf16, F16, Mixed, Scalar };

/// Modes whose chunks all have 16 bytes.
template <Mode M> inline constexpr bool kIsNarrow = M == Mode::Bf16 || M == Mode::F16;

/// The fastest mode for tensors with rows of `cols` elements. `cols` is 0 for flat arrays.
inline Mode modeOf(std::initializer_list<const Tensor *> tensors, int64_t cols) {
  bool allBf16 = true, allF16 = true;
  for (const Tensor *t : tensors) {
    if (reinterpret_cast<uintptr_t>(t->data) % 16 != 0 || cols % kChunk != 0)
      return Mode::Scalar;
    allBf16 &= t->dtype == DType::BF16;
    allF16 &= t->dtype == DType::F16;
  }
  return allBf16 ? Mode::Bf16 : allF16 ? Mode::F16 : Mode::Mixed;
}

/// Calls launch.operator()<mode>().
template <typename Launch> void forMode(Mode mode, Launch launch) {
  if (mode == Mode::Bf16)
    launch.template operator()<Mode::Bf16>();
  else if (mode == Mode::F16)
    launch.template operator()<Mode::F16>();
  else if (mode == Mode::Mixed)
    launch.template operator()<Mode::Mixed>();
  else
    launch.template operator()<Mode::Scalar>();
}

/// Number of elements in the next chunk if `left` elements, at least one, remain.
__device__ __forceinline__ int upToChunk(int64_t left) {
  return static_cast<int>(left < kChunk ? left : kChunk);
}

/// To some units in the last place.
__device__ __forceinline__ float sigmoidOf(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

inline int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Number of threads for a row of `cols` elements with one chunk per thread, limited to threadsMax.
inline int threadsForRow(int64_t cols, int threadsMax) {
  int64_t warps = ceilDiv(ceilDiv(cols, kChunk), kWarp);
  return static_cast<int>(std::min<int64_t>(warps * kWarp, threadsMax));
}

/// Element i as a float, wherever the 16-byte boundaries are.
__device__ __forceinline__ float element(const Data &d, int64_t i) {
  return d.format == Format::Bf16  ? __bfloat162float(static_cast<const __nv_bfloat16 *>(d.p)[i])
         : d.format == Format::F16 ? __half2float(static_cast<const __half *>(d.p)[i])
                                   : static_cast<const float *>(d.p)[i];
}

/// Rounds `value` to the data's type and stores it. If the data accumulate, adds the stored element
/// in fp32 first.
__device__ __forceinline__ void setElement(const Data &d, int64_t i, float value) {
  float sum = d.accumulate ? element(d, i) + value : value;
  if (d.format == Format::Bf16)
    static_cast<__nv_bfloat16 *>(d.p)[i] = __float2bfloat16_rn(sum);
  else if (d.format == Format::F16)
    static_cast<__half *>(d.p)[i] = __float2half_rn(sum);
  else
    static_cast<float *>(d.p)[i] = sum;
}

/// `value` after rounding to the data's type.
__device__ __forceinline__ float rounded(const Data &d, float value) {
  return d.format == Format::Bf16  ? __bfloat162float(__float2bfloat16_rn(value))
         : d.format == Format::F16 ? __half2float(__float2half_rn(value))
                                   : value;
}

/// Whether a chunk's elements have 16 bits; isF16 returns which of the two types they have.
template <Mode M> __device__ __forceinline__ bool isNarrow(const Data &d) {
  return kIsNarrow<M> || d.format != Format::F32;
}
template <Mode M> __device__ __forceinline__ bool isF16(const Data &d) {
  return M == Mode::F16 || (M != Mode::Bf16 && d.format == Format::F16);
}

/// A chunk of 16 bytes as floats.
template <Mode M>
__device__ __forceinline__ void unpack(const Data &d, uint4 raw, float (&v)[kChunk]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  if (isF16<M>(d)) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&words[j]));
      v[2 * j] = pair.x, v[2 * j + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) { // a bf16 number is the upper half of a float
    v[2 * j] = __uint_as_float(words[j] << 16);
    v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
  }
}

/// Two numbers rounded to 16 bits, `a` in the low half.
template <bool kIsF16> __device__ __forceinline__ uint32_t packed(float a, float b) {
  if constexpr (kIsF16) {
    __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
  }
}

/// Rounds eight floats to nearest even and packs them; the inverse of unpack().
template <Mode M> __device__ __forceinline__ uint4 pack(const Data &d, const float (&v)[kChunk]) {
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (isF16<M>(d)) {
      __half2 pair = __floats2half2_rn(v[2 * j], v[2 * j + 1]);
      words[j] = *reinterpret_cast<uint32_t *>(&pair);
    } else {
      __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
      words[j] = *reinterpret_cast<uint32_t *>(&pair);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Rounds eight numbers to the data's type.
template <Mode M> __device__ __forceinline__ void round8(const Data &d, float (&v)[kChunk]) {
  if (isNarrow<M>(d))
    unpack<M>(d, pack<M>(d, v), v);
}

/// Address of the 16-byte chunk that begins at element i.
__device__ __forceinline__ uint4 *chunkOf(const Data &d, int64_t i) {
  return reinterpret_cast<uint4 *>(static_cast<uint16_t *>(d.p) + i);
}

/// Elements [i, i + n), n up to 8; the rest of v is zero.
template <Mode M>
__device__ __forceinline__ void load8(const Data &d, int64_t i, int n, float (&v)[kChunk]) {
  if (M == Mode::Scalar || n < kChunk) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = j < n ? element(d, i + j) : 0.0f;
  } else if (isNarrow<M>(d)) {
    unpack<M>(d, *chunkOf(d, i), v);
  } else {
    const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(d.p) + i);
    float4 a = from[0], b = from[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
}

/// Stores the first n elements of v, n up to 8, from element i on, like setElement().
template <Mode M>
__device__ __forceinline__ void store8(const Data &d, int64_t i, int n, const float (&v)[kChunk]) {
  if (M == Mode::Scalar || n < kChunk) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < n)
        setElement(d, i + j, v[j]);
    return;
  }
  float sum[kChunk] = {};
  if (d.accumulate)
    load8<M>(d, i, n, sum);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    sum[j] = d.accumulate ? sum[j] + v[j] : v[j];
  if (isNarrow<M>(d)) {
    *chunkOf(d, i) = pack<M>(d, sum);
  } else {
    float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(d.p) + i);
    to[0] = {sum[0], sum[1], sum[2], sum[3]};
    to[1] = {sum[4], sum[5], sum[6], sum[7]};
  }
}

/// The sum over the warp, in every lane. All lanes must call it. The order of additions is fixed.
template <typename T> __device__ __forceinline__ T warpSum(T v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
/// Adds each v[k] over groups of `lanes` threads, a power of two up to a warp.
template <int kSums> __device__ __forceinline__ void laneSums(float (&v)[kSums], int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
#pragma unroll
    for (int k = 0; k < kSums; ++k)
      v[k] += __shfl_xor_sync(0xffffffffu, v[k], offset);
}

/// The maximum over the warp, in every lane. All lanes must call it. NaN is ignored, as by fmaxf.
__device__ __forceinline__ float warpMax(float v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

/// Adds each v[k] over the block in a deterministic order; all threads get the sums. All threads of
/// the block must call it, in whole warps.
template <int kCount, typename T> __device__ __forceinline__ void blockSum(T (&v)[kCount]) {
  __shared__ T parts[kCount][kWarp];
  int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    v[k] = warpSum(v[k]);
  if (warps == 1)
    return;
  __syncthreads(); // all threads have finished using `parts`
  if (lane == 0)
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      parts[k][warp] = v[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    v[k] = warpSum(lane < warps ? parts[k][lane] : T(0));
}

/// All threads of every kernel call this first. Returns when everything that precedes the kernel
/// has ended and is visible, even after a dependent launch (Queue.h). After the call, blocks of the
/// next kernel may become resident as blocks of this kernel end.
__device__ __forceinline__ void awaitPrevious() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// The version of PTX, times 10, from which the device's code of a kernel was compiled; 0 if it has
/// none. A device newer than all machine code runs code that was compiled for older ones.
template <typename... Params> int ptxVersionOf(void (*kernel)(Params...)) {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess)
    return attributes.ptxVersion;
  static_cast<void>(cudaGetLastError());
  return 0;
}

/// Enqueues a kernel that begins with awaitPrevious(). If blocksOfCluster exceeds one, adjacent
/// blocks form thread block clusters, on GPUs that support them.
template <typename... Params, typename... Args>
void launchClusters(void (*kernel)(Params...), unsigned blocksOfCluster, dim3 grid, dim3 block,
                    size_t shared, Queue &queue, const Args &...args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = streamOf(queue);
  config.attrs = attributes;
  if (mayDepend(queue)) {
    cudaLaunchAttribute &early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (blocksOfCluster > 1) {
    cudaLaunchAttribute &cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = blocksOfCluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  // A failed launch becomes the last error, which the backend queries.
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

/// Enqueues a kernel that begins with awaitPrevious().
template <typename... Params, typename... Args>
void launchKernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Queue &queue,
                  const Args &...args) {
  launchClusters(kernel, 1, grid, block, shared, queue, args...);
}

/// Grid size of a persistent kernel that loops over `items`: the number of blocks that can be
/// resident at the same time, up to `items`.
template <typename Function>
unsigned persistentGrid(Function *kernel, int threads, size_t shared, int64_t items) {
  int device = 0, processors = 1, blocks = 1;
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  static_cast<void>(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared));
  return static_cast<unsigned>(std::min<int64_t>(items, int64_t{processors} * std::max(blocks, 1)));
}

/// An elementwise op over a flat array: op.run<M>(first element, count up to 8).
template <Mode M, typename Op>
__global__ void __launch_bounds__(256) mapFlat(const Op op, int64_t numel) {
  awaitPrevious();
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
  if (i < numel)
    op.template run<M>(i, upToChunk(numel - i));
}

/// Block shape of row-wise kernels: x has the threads of a row. If a row has fewer chunks than a
/// warp, y has several rows, with up to 256 threads in total.
inline dim3 threadsOfRows(int64_t chunks) {
  constexpr int kThreads = 256;
  if (chunks >= kWarp)
    return static_cast<unsigned>(std::min<int64_t>(ceilDiv(chunks, kWarp) * kWarp, kThreads));
  return {static_cast<unsigned>(chunks), static_cast<unsigned>(kThreads / chunks)};
}

/// Grid of such blocks. Its x dimension covers the rows, its y dimension the chunks of a row.
inline dim3 gridOfRows(dim3 threads, int64_t rows, int64_t chunks) {
  return {static_cast<unsigned>(ceilDiv(rows, threads.y)),
          static_cast<unsigned>(ceilDiv(chunks, threads.x))};
}

/// An elementwise op over rows: op.run<M>(row, column, count up to 8). Each thread has one chunk;
/// blocks have the shape of threadsOfRows().
template <Mode M, typename Op>
__global__ void __launch_bounds__(256) mapRows(const Op op, int64_t rows, int64_t cols) {
  awaitPrevious();
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk;
  if (row < rows && c < cols)
    op.template run<M>(row, c, upToChunk(cols - c));
}

/// Enqueues mapFlat() over `numel` elements. `mode` must be that of all tensors that op accesses.
template <typename Op> void launchFlat(const Call &call, Mode mode, const Op &op, int64_t numel) {
  auto blocks = static_cast<unsigned>(ceilDiv(numel, 256 * kChunk));
  forMode(mode, [&]<Mode M>() {
    launchKernel(mapFlat<M, Op>, blocks, 256, 0, queueOf(call), op, numel);
  });
}

/// f.apply<M>(v) turns the operands' values v[operand][element] into those of the result, in v[0].
template <int kOperands, typename F> struct Pointwise {
  Data in[kOperands], out;
  F f;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kOperands][kChunk];
#pragma unroll
    for (int k = 0; k < kOperands; ++k)
      load8<M>(in[k], i, n, v[k]);
    f.template apply<M>(v);
    store8<M>(out, i, n, v[0]);
  }
};

/// Enqueues an op whose result depends on the same element of each operand.
template <int kOperands, typename F> void launchPointwise(const Call &call, const F &f) {
  static_assert(kOperands == 1 || kOperands == 2);
  const Tensor &first = call.in[0], &last = call.in[kOperands - 1], &y = call.out[0];
  Pointwise<kOperands, F> op = {{dataOf(first)}, dataOf(y), f};
  op.in[kOperands - 1] = dataOf(last);
  launchFlat(call, modeOf({&first, &last, &y}, 0), op, y.numel());
}

/// Enqueues mapRows() over a matrix. `mode` must be modeOf() of all tensors that op accesses, for
/// rows of `cols` elements.
template <typename Op>
void launchRows(const Call &call, Mode mode, const Op &op, int64_t rows, int64_t cols) {
  dim3 threads = threadsOfRows(ceilDiv(cols, kChunk));
  dim3 grid = gridOfRows(threads, rows, ceilDiv(cols, kChunk));
  forMode(mode, [&]<Mode M>() {
    launchKernel(mapRows<M, Op>, grid, threads, 0, queueOf(call), op, rows, cols);
  });
}

} // namespace shardc::kernels::cuda
