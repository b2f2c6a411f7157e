// Both algorithms are those of ATen's `randperm` on the CPU: which one it uses depends on the
// number of elements.
#include "runtime/data/TorchRandom.h"

#include <numeric>
#include <random>
#include <utility>

namespace shardc::data {

/// From `wideFrom` elements on, PyTorch draws 64-bit numbers and shuffles inside out.
void torchPermutation(uint64_t seed, std::span<uint32_t> out, uint64_t wideFrom) {
  std::mt19937 engine(static_cast<uint32_t>(seed)); // its sequence is fixed by the C++ standard
  const uint64_t count = out.size();
  if (count < wideFrom) {
    std::iota(out.begin(), out.end(), uint32_t{0});
    for (uint64_t i = 0; i + 1 < count; ++i)
      std::swap(out[i], out[i + engine() % (count - i)]);
    return;
  }
  for (uint64_t i = 0; i < count;
       ++i) { // inserts an element; the one at its place moves to the end
    uint64_t high = engine(), low = engine();
    uint64_t at = (high << 32 | low) % (i + 1);
    out[i] = static_cast<uint32_t>(i);
    out[i] = out[at];
    out[at] = static_cast<uint32_t>(i);
  }
}

} // namespace shardc::data
