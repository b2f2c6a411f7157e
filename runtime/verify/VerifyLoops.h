// Turns of a loop that do the same, each for later microbatches than the turn before. If a turn
// begins as the one before it did, but for slots that have changed places and microbatches that are
// later, then so do all turns behind it that execute alike: they are proven, and what they lead to
// is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {

/// The loop that is a run for microbatches one after the other.
ProgramNode asLoop(const ProgramNode &run);

/// Calls `walk` with that loop, while `counts` has its turns as the named runs of the segment.
template <typename Walk>
void walkAsLoop(const ProgramNode &run, std::vector<int64_t> &counts, const Walk &walk) {
  std::vector<int64_t> before = counts;
  counts.resize(std::max<size_t>(counts.size(), run.segment + 1));
  counts[run.segment] = run.count;
  walk(asLoop(run));
  counts = std::move(before);
}

class LoopTurns {
public:
  /// `counts` are named runs of each segment around the loop.
  LoopTurns(Inspection &inspection, uint32_t role, const ProgramNode &loop,
            const std::vector<int64_t> &counts);

  /// Turns directly behind this one, or before it, that execute what it does, all runs for
  /// microbatches that are later by the same number from turn to turn.
  int64_t alikeAfter(int64_t turn) const;
  int64_t alikeBefore(int64_t turn) const;
  /// Microbatches from a turn to the next.
  int64_t step() const { return step_; }
  /// The earliest microbatch that a run of the turn is about.
  int64_t earliest(int64_t turn) const { return step_ * turn + earliest_; }
  /// True if a run takes something from the cell, or leaves something in it.
  bool touches(uint32_t cell) const { return cell < isTouched_.size() && isTouched_[cell]; }
  /// The cell at the place of this one so many turns later.
  uint32_t at(uint32_t cell, int64_t turns) const {
    return touches(cell) ? rings_.at(cell, turns * step_) : cell;
  }

private:
  bool isRegular() const { return step_ > 0; }
  static int64_t stepOf(const Role &role, const ProgramNode &loop);
  void cut(const ProgramNode &run, const VariantTable &table, int64_t microbatches);
  void touch(const std::vector<Segment::Boundary> &boundaries);

  const RoleRings &rings_;
  int64_t count_, step_, earliest_ = INT64_MAX;
  std::vector<int64_t> cuts_; ///< turns from which on a run may execute another variant
  std::vector<bool> isTouched_;
};

} // namespace shardc::plan::verifier
