// Happens-before inside one segment, as vector clocks: one position per stream. An op that its
// microbatch leaves out still waits and keeps its place, so one set of clocks serves all variants.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::verifier {

/// An op of each stream, or kNone.
using OpOfStreams = std::array<uint32_t, kStreamsMax>;
inline OpOfStreams noOps() {
  OpOfStreams ops;
  ops.fill(kNone);
  return ops;
}

/// Which ops have ended, for certain, before which others start.
class HappensBefore {
public:
  explicit HappensBefore(const Segment &segment);

  /// True if op `a` has ended before op `b` starts. Every op has ended before the segment's end,
  /// which is the index after the last op.
  bool ends(uint32_t a, uint32_t b) const {
    return b >= before_.size() || before_[b][stream_[a]] > position_[a];
  }
  uint8_t stream(uint32_t op) const { return stream_[op]; }

private:
  using Clock = std::array<uint32_t, kStreamsMax>;
  std::vector<Clock> before_; ///< per op: how many ops of each stream have ended when it starts
  std::vector<uint32_t> position_; ///< per op: index in its stream
  std::vector<uint8_t> stream_;
};

} // namespace shardc::plan::verifier
