#include "runtime/base/Philox.h"

#include <cmath>
#include <numbers>

namespace shardc {

uint64_t hashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

uint64_t streamKey(uint64_t seed, std::string_view name) {
  // One Philox block mixes seed and name, so that neighbouring seeds or names do not share keys.
  uint64_t hash = hashName(name);
  PhiloxBlock block =
      philox4x32({static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), 0, 0}, seed);
  return static_cast<uint64_t>(block[1]) << 32 | block[0];
}

std::array<float, 2> normalPairAt(uint64_t key, uint64_t pair) {
  PhiloxBlock block =
      philox4x32({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0}, key);
  // The first uniform number is in (0, 1], so that its logarithm is finite.
  double u1 = (static_cast<double>(block[0]) + 1.0) * 0x1p-32;
  double u2 = static_cast<double>(block[1]) * 0x1p-32;
  double radius = std::sqrt(-2.0 * std::log(u1));
  double angle = 2.0 * std::numbers::pi * u2;
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

float normalAt(uint64_t key, uint64_t index) { return normalPairAt(key, index / 2)[index % 2]; }

double uniformAt(uint64_t key, uint64_t index) {
  uint64_t quad = index / 4;
  PhiloxBlock block =
      philox4x32({static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 1, 0}, key);
  return static_cast<double>(block[index % 4]) * 0x1p-32;
}

} // namespace shardc
