// Best-fit allocator for one arena, used while a segment is swept from its first op to its last.
// Each free range records which ops must complete before its bytes may be written again.
#pragma once

#include <cstdint>
#include <map>

#include "compiler/passes/Clocks.h"

namespace shardc::passes {

/// Alignment of buffers in bytes: whole cache lines on hosts and devices.
inline constexpr int64_t kBufferAlign = 256;
/// Alignment in bytes that kernels expect of operands and results.
inline constexpr int64_t kPlaceAlign = 16;
/// Size of a buffer including the padding up to the next one.
inline int64_t aligned(int64_t bytes) {
  return (bytes + kBufferAlign - 1) / kBufferAlign * kBufferAlign;
}

class Allocator {
public:
  /// `streams` is the number of streams of the plan.
  explicit Allocator(size_t streams = plan::kStreamsMax) : streams_(streams) {}

  /// Whether the whole range is free.
  bool isFree(int64_t offset, int64_t bytes) const;

  /// Reserves a range. Each of its bytes must be free or beyond the end of the arena.
  void reserve(int64_t offset, int64_t bytes);

  /// Allocates the smallest free range that fits and whose previous users have all completed at
  /// `now`; extends the arena if there is none. Returns the offset in bytes.
  int64_t allocate(int64_t bytes, const Clock &now);

  /// Frees the range. `until` is the last user on each stream.
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
  std::map<int64_t, Extent> free_; ///< by offset; adjacent entries are not merged
  int64_t end_ = 0;
};

} // namespace shardc::passes
