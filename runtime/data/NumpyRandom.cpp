// Draws bounded numbers as numpy's `random_interval` does, on which its shuffle is based.
#include "runtime/data/NumpyRandom.h"

#include <bit>

namespace shardc::data {

uint64_t NumpyRandom::interval(uint64_t max) {
  if (max == 0)
    return 0;
  uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
  uint64_t value = 0;
  do {
    if (max <= UINT32_MAX) {
      value = next32() & mask;
    } else {
      uint64_t high = next32(); // numpy draws the high half first
      value = (high << 32 | next32()) & mask;
    }
  } while (value > max);
  return value;
}

} // namespace shardc::data
