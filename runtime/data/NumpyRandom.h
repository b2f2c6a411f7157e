// The shuffles of numpy.random.RandomState, bit for bit: MT19937 seeded by one 32-bit number,
// masked rejection for bounded numbers, and Fisher-Yates from the end. Megatron orders its samples
// with these, so equal seeds give equal orders.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace shardc::data {

class NumpyRandom {
public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  /// Returns the next 32 random bits.
  uint32_t next32() { return static_cast<uint32_t>(engine_()); }

  /// Returns a number in [0, max], as numpy's random_interval: draws 32 bits if max fits, otherwise
  /// 64.
  uint64_t interval(uint64_t max);

  /// Permutes in place, as RandomState.shuffle does with a one-dimensional array.
  template <typename T> void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;)
      std::swap(values[i], values[interval(i)]);
  }

private:
  std::mt19937 engine_; // its sequence is fixed by the C++ standard
};

} // namespace shardc::data
