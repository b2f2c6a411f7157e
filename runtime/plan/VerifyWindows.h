// Whose content the verifier follows along a program: cells as wholes, and where that refuses a
// plan, the parts of them that something reads. A part lasts where other bytes of its cell are
// written over.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/VerifyImpl.h"
#include "runtime/plan/VerifyRange.h"

namespace shardc::plan::verifier {

/// Windows are numbered: first each cell as a whole, by the cell's own index, then parts.
class CellWindows {
public:
  CellWindows(Report &report, const Role &role, int64_t lastDp)
      : report_(report), role_(role), lastDp_(lastDp),
        cells_(static_cast<uint32_t>(role.cells.size())) {}

  uint32_t size() const { return cells_ + static_cast<uint32_t>(parts_.size()); }
  uint32_t cellOf(uint32_t window) const {
    return window < cells_ ? window : parts_[window - cells_].cell;
  }
  Range rangeOf(uint32_t window) const {
    return window < cells_ ? Range::of(role_.cells[window], lastDp_)
                           : parts_[window - cells_].range;
  }

  /// The window that stands for these bytes of the cell: the whole, unless parts are followed.
  uint32_t find(uint32_t cell, const Range &range) {
    if (range == Range::of(role_.cells[cell], lastDp_))
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

  /// True if something reads a part of a cell.
  bool hasSeenParts() const { return hasSeenParts_; }
  void followParts() {
    followsParts_ = true;
    partsOf_.resize(cells_);
  }

  /// Calls fn(window) for those of the first `count` windows that are the cell's; fn may find more.
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

  Report &report_;
  const Role &role_;
  int64_t lastDp_;
  uint32_t cells_;
  bool hasSeenParts_ = false, followsParts_ = false;
  std::vector<Part> parts_;
  std::vector<std::vector<uint32_t>> partsOf_; ///< windows by cell
};

} // namespace shardc::plan::verifier
