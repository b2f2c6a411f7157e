// Keeps the free ranges of an arena in the order of their addresses, each with the ops that must
// complete before its bytes are written again.
#include "compiler/passes/Allocator.h"

#include "runtime/base/Status.h"

namespace shardc::passes {
bool Allocator::isFree(int64_t offset, int64_t bytes) const {
  int64_t end = std::min(offset + aligned(bytes), end_);
  for (auto at = free_.upper_bound(offset); offset < end; ++at) {
    if (at == free_.begin())
      return false;
    auto before = std::prev(at);
    int64_t until = before->first + before->second.bytes;
    if (before->first > offset || until <= offset)
      return false;
    offset = until;
    if (at == free_.end())
      break;
  }
  return offset >= end;
}

void Allocator::reserve(int64_t offset, int64_t bytes) {
  bytes = aligned(bytes);
  if (offset + bytes > end_) {
    if (end_ < offset + bytes)
      free_.emplace(end_, Extent{offset + bytes - end_, kClockZero});
    end_ = offset + bytes;
  }
  take(offset, bytes);
}

/// Best fit: the smallest run of adjacent free ranges that is large enough and whose users have
/// ended at `now`. Without one, the arena grows, starting in a usable range at its end if there is
/// one.
int64_t Allocator::allocate(int64_t bytes, const Clock &now) {
  bytes = aligned(bytes);
  int64_t best = -1, bestBytes = 0, runStart = -1, runEnd = -1;
  auto consider = [&] {
    int64_t length = runEnd - runStart;
    if (runStart >= 0 && length >= bytes && (best < 0 || length < bestBytes)) {
      best = runStart;
      bestBytes = length;
    }
  };
  for (const auto &[offset, extent] : free_) {
    bool usable = covers(now, extent.until, streams_);
    if (!usable || runStart < 0 || offset != runEnd) {
      consider();
      runStart = usable ? offset : -1;
    }
    runEnd = offset + extent.bytes;
  }
  consider();
  if (best < 0) {
    // If a usable free range reaches the arena's end, the buffer starts in that range and the arena
    // grows by the rest.
    best = runStart >= 0 && runEnd == end_ ? runStart : end_;
    if (best + bytes > end_)
      free_.emplace(end_, Extent{best + bytes - end_, kClockZero});
    end_ = std::max(end_, best + bytes);
  }
  take(best, bytes);
  return best;
}

void Allocator::release(int64_t offset, int64_t bytes, const Clock &until) {
  bytes = aligned(bytes);
  auto at = free_.emplace(offset, Extent{bytes, until}).first;
  // Neighbours with the same history are merged into one extent; others stay separate.
  if (auto next = std::next(at);
      next != free_.end() && next->first == offset + bytes && next->second.until == until) {
    at->second.bytes += next->second.bytes;
    free_.erase(next);
  }
  if (at != free_.begin())
    if (auto before = std::prev(at);
        before->first + before->second.bytes == offset && before->second.until == until) {
      before->second.bytes += at->second.bytes;
      free_.erase(at);
    }
}

void Allocator::take(int64_t offset, int64_t bytes) {
  int64_t end = offset + bytes;
  auto at = free_.upper_bound(offset);
  SHARDC_CHECK(at != free_.begin(), "bytes {} to {} are in use", offset, end);
  --at;
  while (offset < end) {
    SHARDC_CHECK(at != free_.end() && at->first <= offset && at->first + at->second.bytes > offset,
                 "bytes {} to {} are in use", offset, end);
    int64_t extentStart = at->first, extentEnd = at->first + at->second.bytes;
    Clock until = at->second.until;
    at = free_.erase(at);
    if (extentStart < offset)
      free_.emplace(extentStart, Extent{offset - extentStart, until});
    if (extentEnd > end)
      free_.emplace(end, Extent{extentEnd - end, until});
    offset = std::min(extentEnd, end);
  }
}

} // namespace shardc::passes
