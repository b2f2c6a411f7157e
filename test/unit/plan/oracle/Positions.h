// Positions of ranks in groups, and where their places and parts of blocks begin.
#pragma once

#include <optional>
#include <vector>

#include "Runs.h"

namespace shardc::plan::oracle {

/// The rank's position among the ranks that differ from it in the group's axes; 0 for group -1.
int64_t indexOf(const Plan &plan, int16_t group, int64_t rank);
/// Coordinates of a rank; the last axis runs fastest.
std::vector<int64_t> coordinatesOf(const Plan &plan, int64_t rank);
/// The role of a rank.
uint32_t roleOf(const Plan &plan, int64_t rank);

/// Positions of all ranks in all groups, computed once for all orders.
class Positions {
public:
  explicit Positions(const Plan &plan) {
    for (size_t group = 0; group < plan.groups.size(); ++group)
      for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
        of_.resize(group + 1),
            of_[group].push_back(indexOf(plan, static_cast<int16_t>(group), rank));
  }

  /// The rank's position in the group; 0 for group -1.
  int64_t in(int16_t group, int64_t rank) const {
    return group < 0 ? 0 : of_[static_cast<size_t>(group)][static_cast<size_t>(rank)];
  }
  /// The first byte of a place; in a ring, of the microbatch's slot.
  int64_t begin(const Place &place, int64_t rank, int64_t microbatch = 0) const {
    return place.offset + place.coef * in(place.group, rank) +
           slotFor(place.slots, microbatch + place.shift) * place.stride;
  }
  /// Whether the bytes are in a slot of the ring, at a place that depends on the coordinate as the
  /// ring's does, or within a ring whose place is constant.
  bool isInSlot(const Place &place, int64_t bytes, const Place &ring, int64_t rank) const {
    bool movesAlike = ring.coef == place.coef && ring.group == place.group;
    int64_t at = place.offset + place.coef * in(place.group, rank) - ring.offset -
                 ring.coef * in(ring.group, rank);
    return ring.stride == place.stride && ring.arena == place.arena &&
           (ring.coef == 0 || movesAlike) && at >= 0 && at + bytes <= ring.stride;
  }
  /// The first element of a view.
  int64_t begin(const Op &view, int64_t rank) const {
    return view.getInt(AttrKey::offset) + view.getInt(AttrKey::coef) * in(view.group, rank);
  }
  /// The element of the block at which a value begins that is the whole block or the rank's part;
  /// empty for other sizes.
  std::optional<int64_t> begin(const Block &block, int64_t numel, int64_t rank) const {
    if (numel == block.numel)
      return 0;
    if (numel == block.shard)
      return numel * in(block.group, rank);
    return numel == block.stateShard ? std::optional(numel * in(block.stateGroup, rank))
                                     : std::nullopt;
  }

private:
  std::vector<std::vector<int64_t>> of_;
};

} // namespace shardc::plan::oracle
