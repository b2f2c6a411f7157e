// Regions are the units of the verifier's data-flow analysis of cells. A region is a whole cell or,
// where whole cells would refuse a valid plan, a part of a cell that some op reads. A part keeps
// its content when other bytes of its cell are overwritten, for example the shard of one rank
// inside a gathered block. The analysis first runs with whole cells, which is cheap, and with parts
// only if it refused the plan and CellRegions::hasSeenParts().
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRange.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {

/// Gives regions numbers: 0 to cells - 1 are whole cells, with the cell's own index; parts follow
/// in the order in which find() meets them. Numbers stay valid for the life of the object. Owned by
/// the check of one role; refers to the inspection and the role.
class CellRegions {
public:
  CellRegions(Inspection &inspection, uint32_t roleIndex)
      : report_(inspection), role_(inspection.plan().roles[roleIndex]),
        rings_(inspection.ringsOf(roleIndex)), indices_(inspection.plan(), role_),
        cells_(static_cast<uint32_t>(role_.cells.size())) {}

  uint32_t size() const { return cells_ + static_cast<uint32_t>(parts_.size()); }
  uint32_t cellOf(uint32_t region) const {
    return region < cells_ ? region : parts_[region - cells_].cell;
  }
  Range rangeOf(uint32_t region) const {
    return region < cells_ ? Range::of(role_.cells[region], indices_)
                           : parts_[region - cells_].range;
  }

  /// The region for these bytes of the cell. Returns the whole cell if the bytes are all of it, if
  /// it is a slot of a ring, since these rotate, if parts are not followed yet, or if the
  /// inspection has used up its visits.
  uint32_t find(uint32_t cell, const Range &range) {
    if (rings_.isSlot(cell) || range == Range::of(role_.cells[cell], indices_))
      return cell;
    hasSeenParts_ = true;
    if (!followsParts_ || !report_.spend(partsOf_[cell].size() + 1))
      return cell;
    for (uint32_t part : partsOf_[cell])
      if (rangeOf(part) == range)
        return part;
    partsOf_[cell].push_back(size());
    parts_.push_back({cell, range});
    return size() - 1;
  }

  /// Sorts the regions that exist now by their bytes, for forEachIn().
  void index() {
    index_ = {};
    for (uint32_t region = 0; region < size(); ++region) {
      Range range = rangeOf(region);
      index_[static_cast<size_t>(range.arena())].push_back({range.hull(indices_), region});
    }
    for (std::vector<Indexed> &arena : index_) {
      std::ranges::sort(arena, {}, [](const Indexed &each) { return each.bytes.begin; });
      int64_t end = 0;
      for (Indexed &each : arena)
        each.endMax = end = std::max(end, each.bytes.end);
    }
  }
  /// Calls fn(region) once for each region in the index that overlaps one of the ranges, which must
  /// be disjoint and in ascending order.
  template <typename Fn>
  void forEachIn(Arena arena, const std::vector<Hull> &ranges, const Fn &fn) const {
    auto at = index_[static_cast<size_t>(arena)].begin(),
         end = index_[static_cast<size_t>(arena)].end();
    for (const Hull &range : ranges) {
      at = std::partition_point(at, end,
                                [&](const Indexed &each) { return each.endMax <= range.begin; });
      for (; at != end && at->bytes.begin < range.end && report_.spend(1); ++at)
        if (at->bytes.end > range.begin)
          fn(at->region);
    }
  }

  /// Sets of regions for the current segment, which accesses far fewer regions than the role has.
  std::unordered_set<uint32_t> needed, clobbered, left;

  /// Whether some op accesses only a part of a cell. If so, an analysis with parts may accept a
  /// plan that one with whole cells refuses.
  bool hasSeenParts() const { return hasSeenParts_; }
  void followParts() {
    followsParts_ = true;
    partsOf_.resize(cells_);
  }

  /// Calls fn(region) for those of the first `count` regions that belong to the cell; fn may add
  /// regions.
  template <typename Fn> void forEachOf(uint32_t cell, uint32_t count, const Fn &fn) const {
    fn(cell);
    for (size_t i = 0; followsParts_ && i < partsOf_[cell].size(); ++i)
      if (uint32_t part = partsOf_[cell][i]; part < count)
        fn(part);
  }

private:
  struct Part {
    uint32_t cell;
    Range range;
  };

  Inspection &report_;
  const Role &role_;
  const RoleRings &rings_;
  Indices indices_;
  uint32_t cells_;
  bool hasSeenParts_ = false, followsParts_ = false;
  std::vector<Part> parts_;
  std::vector<std::vector<uint32_t>> partsOf_; ///< regions by cell
  struct Indexed {
    Hull bytes; ///< at any index
    uint32_t region;
    int64_t endMax = 0; ///< the largest end of this region and of those before it
  };
  std::array<std::vector<Indexed>, kArenaCount> index_;
};

} // namespace shardc::plan::verifier
