// Conversion to 8-bit numbers: multipliers, rounding and transposed tiles. Bitwise equal to
// kernels/host/Quantize.cpp.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

inline constexpr unsigned kNan = 0x7fc00000u;

/// The largest finite number of the format.
__device__ __forceinline__ float limitOf(bool isE5M2) { return isE5M2 ? 57344.0f : 448.0f; }

/// The number by which elements are multiplied before they are rounded to 8 bits.
__device__ __forceinline__ float multiplierOf(float amax, bool isE5M2) {
  if (!isfinite(amax))
    return __uint_as_float(kNan);
  if (amax == 0)
    return 1.0f;
  return fminf(__fdiv_rn(limitOf(isE5M2), amax), FLT_MAX);
}

/// 1/multiplier. NaN gives the NaN of the host, because a division on the device returns another
/// one.
__device__ __forceinline__ float reciprocal(float multiplier) {
  return isnan(multiplier) ? __uint_as_float(kNan) : __fdiv_rn(1.0f, multiplier);
}

/// Multiplies eight numbers and rounds them to nearest even; beyond the largest finite number they
/// saturate. Byte j of the result has number j.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint2 convertTo(const float (&multipliers)[kChunk],
                                           const float (&v)[kChunk]) {
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < kChunk; j += 2) {
    __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(
        make_float2(v[j] * multipliers[j], v[j + 1] * multipliers[j + 1]), __NV_SATFINITE, kFormat);
    words[j / 4] |= static_cast<uint32_t>(pair) << (j % 4 * 8);
  }
  return {words[0], words[1]};
}

/// Converts eight numbers, each with its own multiplier.
__device__ __forceinline__ uint2 convert(bool isE5M2, const float (&multipliers)[kChunk],
                                         const float (&v)[kChunk]) {
  return isE5M2 ? convertTo<__NV_E5M2>(multipliers, v) : convertTo<__NV_E4M3>(multipliers, v);
}

/// Converts eight numbers with one multiplier.
__device__ __forceinline__ uint2 convert(bool isE5M2, float multiplier, const float (&v)[kChunk]) {
  float multipliers[kChunk];
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    multipliers[j] = multiplier;
  return convert(isE5M2, multipliers, v);
}

__device__ __forceinline__ uint8_t byteOf(uint2 codes, int j) {
  return static_cast<uint8_t>((j < 4 ? codes.x : codes.y) >> (j % 4 * 8));
}

/// Stores the first n of eight bytes at to + at. Outside of scalar mode, this address must be a
/// multiple of 8 if n is 8.
template <Mode M>
__device__ __forceinline__ void storeRow(uint8_t *to, int64_t at, int n, uint2 codes) {
  if (M != Mode::Scalar && n == kChunk) {
    *reinterpret_cast<uint2 *>(to + at) = codes;
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (j < n)
      to[at + j] = byteOf(codes, j);
}

/// Replaces infinities by NaN. Saturation would otherwise convert them to the largest finite
/// number.
__device__ __forceinline__ void markLost(float (&v)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] = isfinite(v[j]) ? v[j] : __uint_as_float(kNan);
}

/// The larger of `most` and the amax of v, both as bits without the sign. These integers have the
/// same order as the absolute values.
__device__ __forceinline__ unsigned largestOf(unsigned most, const float (&v)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    most = max(most, __float_as_uint(v[j]) & 0x7fffffffu);
  return most;
}

/// Raises `largest` to the maximum of all threads' `most`. All threads of a block call it, in whole
/// warps.
__device__ __forceinline__ void joinLargest(unsigned most, unsigned *largest) {
  __shared__ unsigned parts[kWarp];
  most = __reduce_max_sync(0xffffffffu, most);
  __syncthreads(); // all threads have finished using `parts`
  if (threadIdx.x % kWarp == 0)
    parts[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    most =
        __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / kWarp ? parts[threadIdx.x] : 0u);
    most = most > 0x7f800000u ? kNan : most; // all NaNs become one NaN, as on the host
    if (threadIdx.x == 0 && most > *static_cast<volatile unsigned *>(largest))
      atomicMax(largest, most);
  }
}

/// forMode for kernels that convert to 8 bits. f16 uses the kernels for mixed types, because few
/// models that use 8 bits compute in f16.
template <typename Launch> void forQuantisedMode(Mode mode, Launch launch) {
  if (mode == Mode::Bf16)
    launch.template operator()<Mode::Bf16>();
  else if (mode == Mode::Scalar)
    launch.template operator()<Mode::Scalar>();
  else
    launch.template operator()<Mode::Mixed>();
}

/// Returns the result that accumulates an amax, and enqueues clearing it to 0.
inline unsigned *clearLargest(const Call &call, int result) {
  const Tensor &largest = call.out[result];
  Queue &queue = queueOf(call);
  static_cast<void>(cudaMemsetAsync(
      largest.data, 0, static_cast<size_t>(largest.numel()) * sizeof(float), streamOf(queue)));
  noteOther(queue);
  return static_cast<unsigned *>(largest.data);
}

/// The destination of 8-bit numbers with one scale, and the amax from which the scale follows.
struct Target {
  uint8_t *q; ///< null: only the transposed copy is written
  uint8_t *t; ///< transposed copy; null: not requested
  float *scale;
  const float *amax;
  unsigned *seen; ///< records the amax; null: not recorded
  bool isE5M2;
};

/// The destination for a call. Operand `amax` has the amax, and result `copy` is the transposed
/// copy if the call has one.
inline Target targetOf(const Call &call, int amax, int copy) {
  auto *first = static_cast<uint8_t *>(call.out[0].data);
  bool transposed = call.attrs.transposed;
  Target to = {};
  to.q = transposed ? nullptr : first;
  to.t = transposed             ? first
         : call.outCount > copy ? static_cast<uint8_t *>(call.out[copy].data)
                                : nullptr;
  to.scale = static_cast<float *>(call.out[1].data);
  to.amax = static_cast<const float *>(call.in[amax].data) + call.attrs.slot;
  to.isE5M2 = call.out[0].dtype == DType::F8E5M2;
  return to;
}

/// Like targetOf(), for calls that also record the amax in result 2.
inline Target targetOfDelayed(const Call &call, int amax, int copy) {
  Target to = targetOf(call, amax, copy);
  to.seen = static_cast<unsigned *>(call.out[2].data) + call.attrs.slot;
  return to;
}

/// The fastest mode for operands with rows of `cols` elements whose 8-bit numbers go to q.
inline Mode modeOfQuantised(std::initializer_list<const Tensor *> operands, const Tensor &q,
                            int64_t cols) {
  return modeOf({&q}, cols) == Mode::Scalar ? Mode::Scalar : modeOf(operands, cols);
}

/// A tile of a matrix that 256 threads convert. Thread t has the 4 rows from t/8·4 on, and the 8
/// columns from t%8·8 on.
inline constexpr int kTileRows = 128, kTileCols = 64, kRowsEach = 4;

/// The grid that covers a matrix with tiles, with `together` adjacent tiles per block. Blocks that
/// are adjacent along a row run at the same time, so that together they access long pieces of each
/// row.
inline dim3 gridOfTiles(int64_t rows, int64_t cols, int together = 1) {
  return {static_cast<unsigned>(ceilDiv(cols, kTileCols * together)),
          static_cast<unsigned>(ceilDiv(rows, kTileRows))};
}

/// Returns null, or why a kernel with tiles refuses the call: for the host kernel's reasons, or
/// because a column has more tiles than the grid's y dimension can have.
template <const Kernel *kOracle> const char *acceptsTiles(const Call &call) {
  if (const char *reason = acceptsAs<kOracle>(call))
    return reason;
  return call.in[0].rows() > int64_t{kTileRows} * 65535 ? "there are 2^23 rows or more" : nullptr;
}

/// Transposes a tile in shared memory, so that the rows of the transposed matrix are written 128
/// bytes at a time.
struct TransposedTile {
  static constexpr int kGroups = kTileRows / kRowsEach;
  /// A word holds 4 rows of a column. Chunks of columns are shifted by 4 words, and columns are
  /// padded by 4 words, to avoid bank conflicts between 8 chunks of 4 groups on writing and between
  /// 16 bytes of 8 threads on reading.
  alignas(16) uint32_t words[kTileCols][kGroups + 4];

  static __device__ __forceinline__ int placeOf(int group, int chunk) {
    return (group + chunk * 4) % kGroups;
  }

  /// Stores 4 rows of 8 columns.
  __device__ __forceinline__ void put(int group, int chunk, const uint2 (&codes)[kRowsEach]) {
    int place = placeOf(group, chunk);
    putFour(place, chunk * kChunk, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    putFour(place, chunk * kChunk + 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
  }

  /// Stores 4 rows of 4 columns, transposed. Each argument has the 4 columns of one row.
  __device__ __forceinline__ void putFour(int place, int col, uint32_t a, uint32_t b, uint32_t c,
                                          uint32_t d) {
    uint32_t abLow = __byte_perm(a, b, 0x5140), abHigh = __byte_perm(a, b, 0x7362);
    uint32_t cdLow = __byte_perm(c, d, 0x5140), cdHigh = __byte_perm(c, d, 0x7362);
    words[col][place] = __byte_perm(abLow, cdLow, 0x5410);
    words[col + 1][place] = __byte_perm(abLow, cdLow, 0x7632);
    words[col + 2][place] = __byte_perm(abHigh, cdHigh, 0x5410);
    words[col + 3][place] = __byte_perm(abHigh, cdHigh, 0x7632);
  }

  /// Writes the tile at (firstRow, firstCol) of a matrix [rows, cols] to the transposed matrix t.
  __device__ __forceinline__ void store(uint8_t *t, int64_t rows, int64_t cols, int64_t firstRow,
                                        int64_t firstCol) const {
    constexpr int kBytes = 16, kThreads = kTileRows / kBytes; ///< of a column
    bool isAligned = rows % kBytes == 0 && reinterpret_cast<uintptr_t>(t) % kBytes == 0;
    int part = static_cast<int>(threadIdx.x) % kThreads;
    int64_t row = firstRow + part * kBytes;
    for (int c = static_cast<int>(threadIdx.x) / kThreads; c < kTileCols; c += 256 / kThreads) {
      if (firstCol + c >= cols || row >= rows)
        continue;
      uint4 four = *reinterpret_cast<const uint4 *>(&words[c][placeOf(part * 4, c / kChunk)]);
      uint8_t *at = t + (firstCol + c) * rows + row;
      if (isAligned) {
        *reinterpret_cast<uint4 *>(at) = four;
        continue;
      }
      const uint32_t each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int r = 0; r < kBytes; ++r)
        if (row + r < rows)
          at[r] = static_cast<uint8_t>(each[r / 4] >> (r % 4 * 8));
    }
  }
};

} // namespace shardc::kernels::cuda
