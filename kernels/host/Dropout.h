// The random numbers of dropout. Masks are never stored: forward, backward and recomputation draw
// the same bits again, for every strategy, layout and backend.
//
// clang-format off
//   key of an op  first two words of philox4x32({salt, 0, 0, 0}, streamKey(seed, "dropout")),
//                 with the 64-bit salt in two words
//   bits          of (sample, position, channel): word channel mod 4 of
//                 philox4x32({sample low, sample high, position, channel/4}, key)
//   cleared       if bits < round(p·2^32)
//   jitter        factor (1 - jitter) + 2·jitter·(bits div 2^8)·2^-24, in f32
// clang-format on
//
// dropout: sample = samples[b], position = s. attention: position = head·S + query, channel = key.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the attributes are invalid for dropout.
const char *checkDropout(const Attrs &attrs);

/// The factor of an element that is not dropped: 1/(1-p); 0 if p is 1.
inline float dropoutScale(double p) { return p < 1 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f; }

/// The factors of `jitter`: uniform random numbers in [least, least + width).
struct Jitter {
  float least = 1, width = 0;

  explicit Jitter(double jitter)
      : least(static_cast<float>(1 - jitter)), width(static_cast<float>(2 * jitter)) {}
  bool isOn() const { return width > 0; }
  float of(uint32_t bits) const {
    return least + width * (static_cast<float>(bits >> 8) * 0x1p-24f);
  }
};

class Dropout {
public:
  explicit Dropout(const Attrs &attrs);

  bool isOn() const { return threshold_ > 0; }

  /// Sets factors[i] for channel channelBegin + i: 0 if it is dropped, otherwise 1/(1-p); with
  /// jitter, its uniform random number.
  void factors(int64_t sample, int64_t position, int64_t channelBegin, int64_t n,
               float *factors) const;

private:
  uint64_t key_;
  uint64_t threshold_;
  float scale_;
  Jitter jitter_;
};

} // namespace shardc::kernels::host
