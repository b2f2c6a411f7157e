// Windows on data tensors in fp32: kernels compute in fp32 for every element type, and round once
// when they write. An fp32 tensor is read and written in place.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

// Compiles loops for AVX2 and for the baseline; the loader selects one. Without contraction both
// are bitwise equal. Sanitizers run before such a selection is possible.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARDC_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define SHARDC_CLONES
#endif

namespace shardc::kernels::host {

/// Elements that elementwise kernels convert at a time; buffers of this size are on the stack.
inline constexpr int64_t kBlock = 512;

/// Elements [offset, offset + n) of an f32, bf16 or f16 tensor: in place if f32, otherwise in
/// `buffer`.
const float *readF32(const Tensor &t, int64_t offset, int64_t n, float *buffer);

/// The address where the elements from `offset` on are to be computed before `writeF32`: the tensor
/// itself if they need no further processing, otherwise `buffer`.
inline float *targetF32(const Tensor &t, int64_t offset, float *buffer) {
  return t.dtype == DType::F32 && !t.accumulate ? static_cast<float *>(t.data) + offset : buffer;
}

/// Writes `values` to the elements from `offset` on. An accumulating result is old + value in fp32,
/// rounded once.
void writeF32(const Tensor &t, int64_t offset, int64_t n, const float *values);

/// Sum of a[i]·b[i], and of a[i], in fp64 in a fixed order.
double dot(const float *a, const float *b, int64_t n);
double sum(const float *a, int64_t n);

/// total += times·(sum of the squares of a block of elements), for all blocks of elements
/// [begin, end) of an f32, bf16 or f16 tensor, in order.
void addSquares(const Tensor &t, int64_t begin, int64_t end, double times, double &total);

/// The largest of n > 0 numbers; NaNs may be ignored.
float largest(const float *a, int64_t n);

} // namespace shardc::kernels::host
