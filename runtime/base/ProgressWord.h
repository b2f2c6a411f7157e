// Progress of a rank as others see it: one 4-byte word per stream, which the stream writes in order
// with its work, before and after each collective and after the last op of each unit. A word says
// where the stream is, not how often; a separate count of steps distinguishes visits.
#pragma once

#include <cstdint>

namespace shardc {

/// One more word of a rank says which microbatch is under way, if that is to be reported.
///
/// 0: nothing was started. Otherwise the number of an op and its phase: the stream is inside the
/// op, or, before any stream starts, the rank is creating the channel of that collective, where
/// others may wait for it too.
struct ProgressWord {
  static constexpr uint32_t kMaking = uint32_t{1} << 31;
  /// The rank waits in an exchange of the host: for others, as in a collective, but in no op.
  static constexpr uint32_t kExchanging = kMaking - 1;
  static constexpr uint32_t kMicrobatch = uint32_t{1} << 30;
  static constexpr uint32_t ofMicrobatch(int64_t number) {
    return kMicrobatch | (static_cast<uint32_t>(number) & (kMicrobatch / 2 - 1));
  }
  static constexpr bool isMicrobatch(uint32_t word) {
    return (word & (kMaking | kMicrobatch)) == kMicrobatch && word != kExchanging;
  }
  static constexpr uint32_t microbatch(uint32_t word) { return word & (kMicrobatch / 2 - 1); }
  static constexpr uint32_t making(uint32_t op) { return inside(op) | kMaking; }
  static constexpr bool isMaking(uint32_t word) { return isBegun(word) && (word & kMaking) != 0; }
  static constexpr uint32_t inside(uint32_t op) { return op * 2 + 3; }
  static constexpr uint32_t after(uint32_t op) { return op * 2 + 2; }
  static constexpr bool isBegun(uint32_t word) { return word >= 2 && !isMicrobatch(word); }
  static constexpr bool isInside(uint32_t word) { return isBegun(word) && word % 2 == 1; }
  static constexpr uint32_t op(uint32_t word) { return (word & ~kMaking) / 2 - 1; }
};

} // namespace shardc
