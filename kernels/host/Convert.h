// Access to blocks of data tensors in fp32. Kernels compute in fp32 for every element type and
// round once when they write. fp32 tensors are read and written in place.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

// Compiles a function for AVX2 and for the baseline; the loader selects one. Both are bitwise
// equal, because there is no contraction. Not used with sanitizers, which start before the loader
// can select.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARDC_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define SHARDC_CLONES
#endif

namespace shardc::kernels::host {

/// Number of elements that elementwise kernels convert at a time. Buffers of this size are on the
/// stack.
inline constexpr int64_t kBlock = 512;

/// Returns elements [offset, offset + n) of an f32, bf16 or f16 tensor as fp32: in place if f32,
/// otherwise in `buffer`.
const float *readF32(const Tensor &t, int64_t offset, int64_t n, float *buffer);

/// Where a kernel computes the elements that start at `offset` before it calls `writeF32`: in the
/// tensor itself if its elements need neither rounding nor accumulation, otherwise in `buffer`.
inline float *targetF32(const Tensor &t, int64_t offset, float *buffer) {
  return t.dtype == DType::F32 && !t.accumulate ? static_cast<float *>(t.data) + offset : buffer;
}

/// Writes `values` to the elements from `offset` on. If the tensor accumulates, writes old + value,
/// computed in fp32 and rounded once.
void writeF32(const Tensor &t, int64_t offset, int64_t n, const float *values);

/// The sum of a[i]·b[i], and the sum of a[i], in fp64 in a fixed order.
double dot(const float *a, const float *b, int64_t n);
double sum(const float *a, int64_t n);

/// total += times·(sum of squares), for each block of elements [begin, end) of an f32, bf16 or f16
/// tensor, in order.
void addSquares(const Tensor &t, int64_t begin, int64_t end, double times, double &total);

/// The maximum of n > 0 numbers. NaNs may be ignored.
float largest(const float *a, int64_t n);

} // namespace shardc::kernels::host
