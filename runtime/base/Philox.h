// The counter-based random number generator for initial weights, dropout and shuffling:
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A value
// depends only on key and counter, so all ranks, layouts and backends draw the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shardc {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Applies ten rounds of Philox4x32 to a 128-bit counter with a 64-bit key.
inline PhiloxBlock philox4x32(PhiloxBlock counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// 64-bit FNV-1a hash of a name. Combined with the seed, it gives a generator's key.
uint64_t hashName(std::string_view name);

/// The key of the random number stream for `name` in a run with `seed`.
uint64_t streamKey(uint64_t seed, std::string_view name);

/// The standard normal number of element `index` in stream `key`. It is computed by Box-Muller in
/// double precision from two 32-bit uniform numbers of block index/2 (cosine for even elements,
/// sine for odd ones), and rounded to float.
float normalAt(uint64_t key, uint64_t index);

/// Elements 2·pair and 2·pair + 1 of stream `key`, bitwise equal to those of normalAt.
std::array<float, 2> normalPairAt(uint64_t key, uint64_t pair);

/// The uniform number in [0, 1), with a resolution of 32 bits, of element `index` in stream `key`.
double uniformAt(uint64_t key, uint64_t index);

} // namespace shardc
