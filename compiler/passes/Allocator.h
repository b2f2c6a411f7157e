// Addresses in one arena while a segment is swept from its first op to its last: free stretches
// know which ops have to have ended before their bytes may be written again.
#pragma once

#include <cstdint>
#include <map>

#include "compiler/passes/Clocks.h"

namespace shardc::passes {

/// Every buffer starts at a multiple of this many bytes: whole cache lines on hosts and devices.
inline constexpr int64_t kBufferAlign = 256;

class Allocator {
public:
  /// Takes the range out of what is free (or beyond the end); it must not be taken yet.
  void reserve(int64_t offset, int64_t bytes);

  /// The smallest stretch of free bytes that fits and whose earlier users have all ended at `now`;
  /// the arena grows where there is none. Returns its offset.
  int64_t allocate(int64_t bytes, const Clock &now);

  /// Gives the range back; its users are the ops in `until`.
  void release(int64_t offset, int64_t bytes, const Clock &until);

  /// Bytes that were in use at any time.
  int64_t peakBytes() const { return end_; }

private:
  struct Extent {
    int64_t bytes;
    Clock until;
  };
  /// Removes [offset, offset + bytes) from the free extents.
  void take(int64_t offset, int64_t bytes);

  std::map<int64_t, Extent> free_; ///< by offset; neighbours may touch
  int64_t end_ = 0;
};

} // namespace shardc::passes
