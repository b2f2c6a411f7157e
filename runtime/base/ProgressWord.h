// Progress of a rank that others can read: one 4-byte word per stream. The stream writes it in
// order with its work: before and after each collective, and after the last op of each unit. A word
// says where the stream is, but not how often it was there; a separate count of steps distinguishes
// visits.
#pragma once

#include <cstdint>

namespace shardc {

/// Encodes a progress word. 0 means that nothing was started. Otherwise the word has the number of
/// an op and a phase: the stream is inside the op or after it. Before any stream starts, it may say
/// that the rank is creating the channel of that collective, for which others may wait, too.
///
/// Another word of the rank has the current microbatch, if that is reported.
struct ProgressWord {
  static constexpr uint32_t kMaking = uint32_t{1} << 31;
  /// The rank waits in an exchange between hosts. It waits for others as in a collective, but is in
  /// no op.
  static constexpr uint32_t kExchanging = kMaking - 1;
  static constexpr uint32_t kMicrobatch = uint32_t{1} << 30;
  /// Words of the rank's current microbatch; large numbers are taken modulo 2^29.
  static constexpr uint32_t ofMicrobatch(int64_t number) {
    return kMicrobatch | (static_cast<uint32_t>(number) & (kMicrobatch / 2 - 1));
  }
  static constexpr bool isMicrobatch(uint32_t word) {
    return (word & (kMaking | kMicrobatch)) == kMicrobatch && word != kExchanging;
  }
  static constexpr uint32_t microbatch(uint32_t word) { return word & (kMicrobatch / 2 - 1); }
  /// The rank creates the channel of collective `op`.
  static constexpr uint32_t making(uint32_t op) { return inside(op) | kMaking; }
  static constexpr bool isMaking(uint32_t word) { return isBegun(word) && (word & kMaking) != 0; }
  /// The stream is inside op number `op`, or after it.
  static constexpr uint32_t inside(uint32_t op) { return op * 2 + 3; }
  static constexpr uint32_t after(uint32_t op) { return op * 2 + 2; }
  static constexpr bool isBegun(uint32_t word) { return word >= 2 && !isMicrobatch(word); }
  static constexpr bool isInside(uint32_t word) { return isBegun(word) && word % 2 == 1; }
  /// The op's number, of a word for which isBegun() holds.
  static constexpr uint32_t op(uint32_t word) { return (word & ~kMaking) / 2 - 1; }
};

} // namespace shardc
