// Happens-before inside one segment, as vector clocks: one position per stream. An op that its
// microbatch leaves out still waits and keeps its place, so one set of clocks serves all variants.
// And a shadow of some bytes while the ops of a segment access them in order of issue: for each
// interval between two boundaries it keeps the value written last and, per stream, the last op that
// read or wrote it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/verify/VerifyImpl.h"

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

inline constexpr uint32_t kInitial =
    kNone - 1; ///< in place of a value: what was there at the start

struct Access {
  enum Kind : uint8_t {
    Read,
    ReadTaken, ///< of an operand whose buffer a result of the same op takes over
    Write
  };
  uint32_t op = kNone; ///< from the number of ops on: the segment's end, for one more region each
  uint32_t source = kNone; ///< value that the bytes hold, or from now on hold; kInitial
  ValueId value = kNone;   ///< operand or result of the op
  Kind kind = Read;
};

class Shadow {
public:
  Shadow(const Scope &scope, const HappensBefore &order, Variant variant)
      : scope_(scope), order_(order), variant_(variant) {}

  /// Starts anew over intervals between neighbouring boundaries, in the arena, at the coordinate.
  void reset(const std::vector<int64_t> &boundaries, Arena arena, int64_t member);
  /// Intervals that are looked at elsewhere.
  void skip(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i)
      states_[i].isSkipped = true;
  }
  /// Plays an access on the intervals `first` to `last` - 1; reports what it finds.
  void play(const Access &access, size_t first, size_t last) {
    if (!scope_.inspection.spend(last - first))
      return;
    if (access.kind == Access::Write)
      write(access, first, last);
    else
      read(access, first, last);
  }
  /// Findings of reads at the end of the segment, by region. They are not reported here: they
  /// matter only if the region is read afterwards.
  const std::map<uint32_t, Finding> &corrupted() const { return corrupted_; }
  /// What was written last in some of the intervals.
  struct Written {
    uint32_t op;
    ByteRange bytes;
  };
  /// The first that was written since the start, if any was.
  std::optional<Written> findWritten(size_t first, size_t last) const;

private:
  struct State {
    uint32_t source = kInitial;
    uint32_t conflict = kNone;  ///< an earlier write that is unordered with the last one
    uint32_t operandOf = kNone; ///< op that reads or writes here and does not take over the buffer
    bool isSkipped = false;
    uint8_t streams = 0; ///< a bit each: those with a reader or writer
    OpOfStreams writers = noOps(), readers = noOps();
  };

  void read(const Access &access, size_t first, size_t last);
  void write(const Access &access, size_t first, size_t last);
  void reportRead(const Access &access, size_t at);
  Finding badRead(const Access &access, size_t at) const;
  void reportRace(const Access &access, size_t at, uint32_t reader);
  void reportOverlap(const Access &access, size_t at);
  void annotate(Finding &finding, size_t at, uint32_t other, std::string note);
  ByteRange bytesAt(size_t at) const;

  const Scope &scope_;
  const HappensBefore &order_;
  Variant variant_;
  const std::vector<int64_t> *boundaries_ = nullptr;
  Arena arena_ = Arena::Work;
  int64_t member_ = 0;
  std::vector<State> states_;
  std::map<uint32_t, Finding> corrupted_;
};

} // namespace shardc::plan::verifier
