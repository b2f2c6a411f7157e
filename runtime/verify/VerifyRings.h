// Rings: cells with a slot for each microbatch in flight. A cell is followed like a ring of one
// slot if it passes on what is of another microbatch than the one under way. The verifier looks at
// a plan in which each slot is a cell of its own, at the place that it has in microbatch 0. In
// another microbatch the slots of each ring have changed places, and nothing else has: since a
// ring's bytes are its own, all that holds of the bytes in microbatch 0 holds in every one.
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
  bool isSlot(uint32_t cell) const { return hasRings() && rings_[cell] >= 0; }
  /// The cell at the place of `cell` in the microbatch, where slots have moved on.
  uint32_t at(uint32_t cell, int64_t microbatch) const {
    if (!isSlot(cell))
      return cell;
    const std::vector<uint32_t> &slots = slots_[static_cast<size_t>(rings_[cell])];
    auto count = static_cast<int64_t>(slots.size());
    int64_t slot = (numbers_[cell] + microbatch % count + count) % count;
    return slots[static_cast<size_t>(slot)];
  }
  /// All slots of the ring of which the cell is one; the cell itself if it is none.
  std::vector<uint32_t> slotsOf(uint32_t cell) const {
    return isSlot(cell) ? slots_[static_cast<size_t>(rings_[cell])] : std::vector{cell};
  }

  /// Makes these cells the slots of a ring.
  void add(const std::vector<uint32_t> &cells);

private:
  std::vector<int32_t> rings_;               ///< of each cell; -1: it is no slot
  std::vector<int64_t> numbers_;             ///< of each cell among the slots of its ring
  std::vector<std::vector<uint32_t>> slots_; ///< cells of each ring
};

/// True if the segment takes something from a ring, or leaves something in one.
bool touchesRings(const RoleRings &rings, const Segment &segment);

/// A plan without rings that stands for one with them, and the rings of its roles.
struct FlatPlan {
  Plan plan;
  std::vector<RoleRings> rings;
};

/// True if a role has one, or a cell that is followed like one.
bool hasRings(const Plan &plan);
/// Slots become cells: the first of a ring is the ring's own, the others are behind all cells.
/// Boundaries name slots, and keep their distances between microbatches.
FlatPlan flattened(const Plan &plan);

} // namespace shardc::plan::verifier
