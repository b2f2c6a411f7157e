// Rings are cells with one slot for each microbatch in flight. The verifier flattens them: each
// slot becomes a cell, at the place that the slot has in microbatch 0. Other microbatches differ
// only in the rotation of the slots. No other buffer uses a ring's bytes, so what holds for the
// bytes in microbatch 0 holds in every microbatch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::verifier {

/// Which cells of a role are slots of its rings.
class RoleRings {
public:
  explicit RoleRings(size_t cells = 0) : rings_(cells, -1) {}

  bool hasRings() const { return !slots_.empty(); }
  /// False also for regions that are parts of cells, which have higher numbers.
  bool isSlot(uint32_t cell) const { return cell < rings_.size() && rings_[cell] >= 0; }
  /// The cell that is at the place of `cell` in the given microbatch, which may be negative.
  uint32_t at(uint32_t cell, int64_t microbatch) const {
    if (!isSlot(cell))
      return cell;
    const std::vector<uint32_t> &slots = slots_[static_cast<size_t>(rings_[cell])];
    auto count = static_cast<int64_t>(slots.size());
    int64_t slot = (numbers_[cell] + microbatch % count + count) % count;
    return slots[static_cast<size_t>(slot)];
  }
  /// All slots of the ring that contains the cell, or just the cell if it is not a slot.
  std::vector<uint32_t> slotsOf(uint32_t cell) const {
    return isSlot(cell) ? slots_[static_cast<size_t>(rings_[cell])] : std::vector{cell};
  }

  /// Makes these cells the slots of a ring.
  void add(const std::vector<uint32_t> &cells);

private:
  std::vector<int32_t> rings_;               ///< the ring of each cell; -1: not a slot
  std::vector<int64_t> numbers_;             ///< index of each cell among the slots of its ring
  std::vector<std::vector<uint32_t>> slots_; ///< cells of each ring
};

/// True if the segment reads a slot or stores to one.
bool touchesRings(const RoleRings &rings, const Segment &segment);

/// A plan in which cells replace ring slots, and which cells form the rings of each role.
struct FlatPlan {
  Plan plan;
  std::vector<RoleRings> rings;
};

/// True if a role has a ring.
bool hasRings(const Plan &plan);
/// Replaces slots by cells: the first slot of a ring keeps the ring's index, the other slots follow
/// all cells. Boundaries of segments name slots, and keep their distances between microbatches.
FlatPlan flattened(const Plan &plan);

} // namespace shardc::plan::verifier
