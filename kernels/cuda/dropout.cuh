// Random bits of dropout on the device: the generator of runtime/base/Philox.h with the counters of
// kernels/host/Dropout.h, so that masks are bitwise equal to the host's. An element's bits depend
// only on sample, position and channel, not on the layout. Masks are not stored.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Dropout.h"
#include "runtime/base/Philox.h"

namespace shardc::kernels::cuda {

/// Philox4x32-10, bitwise equal to the host's.
__device__ __forceinline__ uint4 philox(uint4 counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = {high1 ^ counter.y ^ k0, low1, high0 ^ counter.w ^ k1, low0};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Which elements an op drops; the others are multiplied by `scale`.
struct DropoutMask {
  uint64_t key = 0;
  uint64_t threshold = 0; ///< an element is dropped if its random bits are below it; 0: no dropout
  float scale = 1;

  /// Random bits of channels 4·quad to 4·quad + 3.
  __device__ __forceinline__ uint4 bits(int64_t sample, uint32_t position, uint32_t quad) const {
    auto s = static_cast<uint64_t>(sample);
    return philox({static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32), position, quad}, key);
  }
  /// Dropout factor of one channel.
  __device__ __forceinline__ float factor(int64_t sample, uint32_t position,
                                          uint32_t channel) const {
    uint4 four = bits(sample, position, channel / 4);
    uint32_t word = channel % 4;
    uint32_t mine = word == 0 ? four.x : word == 1 ? four.y : word == 2 ? four.z : four.w;
    return mine < threshold ? 0.0f : scale;
  }
};

/// Derives the mask's key from the seed and the salt of a call.
inline DropoutMask dropoutMask(const Attrs &attrs) {
  auto salt = static_cast<uint64_t>(attrs.salt);
  PhiloxBlock block =
      philox4x32({static_cast<uint32_t>(salt), static_cast<uint32_t>(salt >> 32), 0, 0},
                 streamKey(static_cast<uint64_t>(attrs.seed), "dropout"));
  return {static_cast<uint64_t>(block[1]) << 32 | block[0],
          static_cast<uint64_t>(std::llround(attrs.p * 0x1p32)), host::dropoutScale(attrs.p)};
}

} // namespace shardc::kernels::cuda
