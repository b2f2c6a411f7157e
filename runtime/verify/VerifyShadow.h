// Finds races between ops of one segment. HappensBefore orders the ops of all streams by vector
// clocks, with one position per stream. Shadow plays the accesses of a segment in order of issue.
// For each byte interval it keeps the value written last and, per stream, the last op that read or
// wrote it. Two unordered accesses of which one writes are a finding. An op that the microbatch
// skips still waits and keeps its position, so one set of clocks serves all variants.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// The index of one op for each stream; kNone where a stream has none.
using OpOfStreams = std::array<uint32_t, kStreamsMax>;
/// kNone for each stream.
inline OpOfStreams noOps() {
  OpOfStreams ops;
  ops.fill(kNone);
  return ops;
}

/// Which ops are certain to end before another op starts: earlier ops on the same stream, and ops
/// that it reaches through a chain of waits.
class HappensBefore {
public:
  /// Computes the clocks of all ops. Does not refer to the segment afterwards.
  explicit HappensBefore(const Segment &segment);

  /// True if op `a` is certain to end before op `b` starts. As `b`, the index after the last op
  /// stands for the segment's end, which comes after every op.
  bool ends(uint32_t a, uint32_t b) const {
    return b >= before_.size() || before_[b][stream_[a]] > position_[a];
  }
  /// The stream of the op.
  uint8_t stream(uint32_t op) const { return stream_[op]; }

private:
  using Clock = std::array<uint32_t, kStreamsMax>;
  std::vector<Clock> before_; ///< per op: how many ops of each stream have ended when it starts
  std::vector<uint32_t> position_; ///< per op: index in its stream
  std::vector<uint8_t> stream_;
};

inline constexpr uint32_t kInitial =
    kNone - 1; ///< as a source of bytes: their content at the start of the segment

/// One access of an op, or of the segment's end, to bytes.
struct Access {
  enum Kind : uint8_t {
    Read,
    ReadTaken, ///< reads an operand whose buffer a result of the same op takes over
    Write
  };
  uint32_t op =
      kNone; ///< indices from the number of ops on: the segment's end reads one region each
  uint32_t source = kNone; ///< the source that the bytes contain after the access; kInitial
  ValueId value = kNone;   ///< operand or result of the op
  Kind kind = Read;
};

/// The bytes of one arena while the ops of one variant access them. Findings go to the inspection
/// of `scope`. Scope and order must outlive the object.
class Shadow {
public:
  Shadow(const Scope &scope, const HappensBefore &order, Variant variant)
      : scope_(scope), order_(order), variant_(variant) {}

  /// Starts again with the intervals between neighbouring boundaries (bytes of the arena,
  /// ascending), for ranks with index `member` in the group of the plan's shards. `boundaries` must
  /// outlive the calls that follow.
  void reset(const std::vector<int64_t> &boundaries, Arena arena, int64_t member);
  /// Excludes intervals that another shadow covers, so that each finding is reported once.
  void skip(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i)
      states_[i].isSkipped = true;
  }
  /// Plays an access on the intervals `first` to `last` - 1. Reports races and reads of wrong
  /// contents.
  void play(const Access &access, size_t first, size_t last) {
    if (!scope_.inspection.spend(last - first))
      return;
    if (access.kind == Access::Write)
      write(access, first, last);
    else
      read(access, first, last);
  }
  /// Findings about the contents of regions at the end of the segment, by region. They are
  /// collected, not reported: they matter only if a later segment reads the region.
  const std::map<uint32_t, Finding> &corrupted() const { return corrupted_; }
  /// The op that wrote last in some interval, and the bytes.
  struct Written {
    uint32_t op;
    ByteRange bytes;
  };
  /// The first interval of the range that an op has written since reset(); none if no op has.
  std::optional<Written> findWritten(size_t first, size_t last) const;

private:
  struct State {
    uint32_t source = kInitial;
    uint32_t conflict = kNone;  ///< an earlier write that is unordered with the last one
    uint32_t operandOf = kNone; ///< op that accesses these bytes and does not take over the buffer
    bool isSkipped = false;
    uint8_t streams = 0; ///< one bit per stream with a reader or writer
    OpOfStreams writers = noOps(), readers = noOps();
  };

  void read(const Access &access, size_t first, size_t last);
  void write(const Access &access, size_t first, size_t last);
  void reportRead(const Access &access, size_t at);
  Finding badRead(const Access &access, size_t at) const;
  void reportRace(const Access &access, size_t at, uint32_t reader);
  void reportOverlap(const Access &access, size_t at);
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
