// A chunk of eight elements in registers: packed in four registers if all data have one 16-bit
// type, otherwise eight floats. Also the amax of chunks, their quantisation to 8 bits, and
// asynchronous copies that prefetch chunks.
#pragma once

#include <type_traits>

#include "kernels/cuda/quantize.cuh"

namespace shardc::kernels::cuda {

/// Eight numbers of 16 bits, in the order of memory.
struct PackedChunk {
  uint4 words = {};
};
/// Eight numbers of any type, as floats that their type has.
struct FloatChunk {
  float v[kChunk] = {};
};
template <Mode M> using Chunk = std::conditional_t<kIsNarrow<M>, PackedChunk, FloatChunk>;

/// Reads elements [i, i + n), n up to 8 (0 or 8 in modes with whole chunks); the rest is zero.
template <Mode M> __device__ __forceinline__ Chunk<M> readChunk(const Data &d, int64_t i, int n) {
  Chunk<M> chunk;
  if constexpr (kIsNarrow<M>) {
    if (n > 0)
      chunk.words = *chunkOf(d, i);
  } else {
    load8<M>(d, i, n, chunk.v);
  }
  return chunk;
}

/// Writes elements that are already rounded to the data's type, without accumulating; n as in
/// readChunk.
template <Mode M>
__device__ __forceinline__ void writeChunk(const Data &d, int64_t i, int n, const Chunk<M> &chunk) {
  if constexpr (kIsNarrow<M>) {
    if (n > 0)
      *chunkOf(d, i) = chunk.words;
  } else {
    store8<M>(d, i, n, chunk.v);
  }
}

/// The eight elements as floats.
template <Mode M>
__device__ __forceinline__ void floatsOf(const Chunk<M> &chunk, float (&v)[kChunk]) {
  if constexpr (kIsNarrow<M>) {
    unpack<M>(Data{}, chunk.words, v);
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = chunk.v[j];
  }
}

/// v rounded to the type of `like`.
template <Mode M>
__device__ __forceinline__ Chunk<M> roundedChunk(const Data &like, const float (&v)[kChunk]) {
  Chunk<M> chunk;
  if constexpr (kIsNarrow<M>) {
    chunk.words = pack<M>(like, v);
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      chunk.v[j] = rounded(like, v[j]);
  }
  return chunk;
}

/// Makes the compiler compute the floats of a chunk again after this point, so that only the packed
/// form stays in registers.
template <Mode M> __device__ __forceinline__ void keepPacked(Chunk<M> &chunk) {
  if constexpr (kIsNarrow<M>)
    asm volatile(""
                 : "+r"(chunk.words.x), "+r"(chunk.words.y), "+r"(chunk.words.z),
                   "+r"(chunk.words.w));
}

/// The amax of many chunks. It compares numbers as bits without the sign, because these integers
/// have the same order as the absolute values. Packed chunks are compared as packed pairs of 16
/// bits.
template <Mode M> class Amax {
public:
  /// Includes the numbers of a chunk. The type of all chunks must be the same.
  __device__ __forceinline__ void join(const Chunk<M> &chunk) {
    if constexpr (kIsNarrow<M>) {
      const uint32_t words[4] = {chunk.words.x, chunk.words.y, chunk.words.z, chunk.words.w};
#pragma unroll
      for (uint32_t word : words)
        most_ = __vmaxu2(most_, word & 0x7fff7fffu);
    } else {
      most_ = largestOf(most_, chunk.v);
    }
  }

  /// The amax as the bits of a float.
  __device__ __forceinline__ unsigned bits() const {
    if constexpr (M == Mode::Bf16)
      return max(most_ << 16, most_ & 0xffff0000u);
    if constexpr (M == Mode::F16) {
      float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&most_));
      return max(__float_as_uint(pair.x), __float_as_uint(pair.y));
    }
    return most_;
  }

  /// Whether no number so far was infinite or NaN.
  __device__ __forceinline__ bool isFinite() const { return bits() < 0x7f800000u; }

private:
  uint32_t most_ = 0;
};

/// Converts a chunk to its stored form; updates the amax `most` if requested.
template <Mode M>
__device__ __forceinline__ uint2 codesOf(const Target &to, float multiplier, const Chunk<M> &chunk,
                                         Amax<M> &most) {
  float v[kChunk];
  floatsOf<M>(chunk, v);
  if (to.seen) {
    most.join(chunk);
    if (!most.isFinite())
      markLost(v);
  }
  return convert(to.isE5M2, multiplier, v);
}

/// Starts an asynchronous copy of 16 bytes to shared memory; waitForCopies() completes it.
__device__ __forceinline__ void copyAhead(void *shared, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(from)
               : "memory");
}
/// Closes the current group of this thread's asynchronous copies.
__device__ __forceinline__ void endCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kLeft groups of this thread are complete.
template <int kLeft> __device__ __forceinline__ void waitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

} // namespace shardc::kernels::cuda
