// Numbers of 8 bits: multipliers, conversion and turned tiles, to the bit what
// kernels/host/Quantize.cpp does.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

inline constexpr unsigned kNan = 0x7fc00000u;

__device__ __forceinline__ float limitOf(bool isE5M2) { return isE5M2 ? 57344.0f : 448.0f; }

/// What numbers are multiplied with before they are rounded.
__device__ __forceinline__ float multiplierOf(float amax, bool isE5M2) {
  if (!isfinite(amax))
    return __uint_as_float(kNan);
  if (amax == 0)
    return 1.0f;
  return fminf(__fdiv_rn(limitOf(isE5M2), amax), FLT_MAX);
}

/// With the host's NaN: a division here makes another one.
__device__ __forceinline__ float reciprocal(float multiplier) {
  return isnan(multiplier) ? __uint_as_float(kNan) : __fdiv_rn(1.0f, multiplier);
}

/// Eight numbers in their order, each with a multiplier of its own.
__device__ __forceinline__ uint2 convert(bool isE5M2, const float (&multipliers)[kChunk],
                                         const float (&v)[kChunk]) {
  __nv_fp8_interpretation_t format = isE5M2 ? __NV_E5M2 : __NV_E4M3;
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < kChunk; j += 2) {
    __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(
        make_float2(v[j] * multipliers[j], v[j + 1] * multipliers[j + 1]), __NV_SATFINITE, format);
    words[j / 4] |= static_cast<uint32_t>(pair) << (j % 4 * 8);
  }
  return {words[0], words[1]};
}

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

/// A tile of a matrix that 256 threads convert, each 4 rows of 8 columns: thread t has the rows
/// t/8·4 and the columns t%8·8.
inline constexpr int kTileRows = 128, kTileCols = 64, kRowsEach = 4;

/// Null, or why a kernel of tiles refuses this call: what the host's refuses, and more tiles in a
/// row than a grid has columns.
template <const Kernel *kOracle> const char *acceptsTiles(const Call &call) {
  if (const char *reason = acceptsAs<kOracle>(call))
    return reason;
  return call.in[0].cols() > int64_t{kTileCols} * 65535 ? "a row has 2^22 elements or more"
                                                        : nullptr;
}

/// Turns a tile: rows of the transpose are written 128 bytes at a time.
struct TurnedTile {
  /// One word is 4 rows of a column; rows of words are padded against conflicts.
  uint32_t words[kTileCols][kTileRows / kRowsEach + 1];

  /// 4 rows of 8 columns.
  __device__ __forceinline__ void put(int group, int chunk, const uint2 (&codes)[kRowsEach]) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      uint32_t word = 0;
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r)
        word |= static_cast<uint32_t>(byteOf(codes[r], j)) << (8 * r);
      words[chunk * kChunk + j][group] = word;
    }
  }

  /// The tile of rows by cols that begins there, into the transpose of the matrix.
  __device__ __forceinline__ void store(uint8_t *t, int64_t rows, int64_t cols, int64_t firstRow,
                                        int64_t firstCol) const {
    int lane = static_cast<int>(threadIdx.x) % kWarp;
    int64_t row = firstRow + lane * kRowsEach;
    bool isWhole = rows % kRowsEach == 0 && reinterpret_cast<uintptr_t>(t) % kRowsEach == 0;
    for (int c = static_cast<int>(threadIdx.x) / kWarp; c < kTileCols; c += 256 / kWarp) {
      if (firstCol + c >= cols || row >= rows)
        continue;
      uint8_t *at = t + (firstCol + c) * rows + row;
      uint32_t word = words[c][lane];
      if (isWhole) {
        *reinterpret_cast<uint32_t *>(at) = word;
        continue;
      }
      for (int r = 0; r < kRowsEach && row + r < rows; ++r)
        at[r] = static_cast<uint8_t>(word >> (8 * r));
    }
  }
};

} // namespace shardc::kernels::cuda
