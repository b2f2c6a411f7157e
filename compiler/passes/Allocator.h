// Addresses in one arena while a segment is swept from its first op to its last. Each free stretch
// records which ops must have ended before its bytes may be written again.
#pragma once

#include <cstdint>
#include <map>

#include "compiler/passes/Clocks.h"

namespace shardc::passes {

/// Every buffer starts at a multiple of this many bytes: whole cache lines on hosts and devices.
inline constexpr int64_t kBufferAlign = 256;
/// Kernels expect operands and results at multiples of this many bytes.
inline constexpr int64_t kPlaceAlign = 16;
/// What a buffer takes with the bytes up to the next one.
inline int64_t aligned(int64_t bytes) {
  return (bytes + kBufferAlign - 1) / kBufferAlign * kBufferAlign;
}

class Allocator {
public:
  /// For a plan with so many streams.
  explicit Allocator(size_t streams = plan::kStreamsMax) : streams_(streams) {}

  /// Whether nobody has bytes of the range.
  bool isFree(int64_t offset, int64_t bytes) const;

  /// Reserves a range that is free or beyond the end.
  void reserve(int64_t offset, int64_t bytes);

  /// The smallest free stretch that fits and whose earlier users have all ended at `now`; the arena
  /// grows if there is none. Returns its offset.
  int64_t allocate(int64_t bytes, const Clock &now);

  /// Frees the range; `until` has its users.
  void release(int64_t offset, int64_t bytes, const Clock &until);

  /// Peak number of bytes in use (the high watermark).
  int64_t peakBytes() const { return end_; }

private:
  struct Extent {
    int64_t bytes;
    Clock until;
  };
  /// Removes [offset, offset + bytes) from the free extents.
  void take(int64_t offset, int64_t bytes);

  size_t streams_;
  std::map<int64_t, Extent> free_; ///< by offset; neighbours may touch
  int64_t end_ = 0;
};

} // namespace shardc::passes
