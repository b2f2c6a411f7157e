// The members of groups.
#pragma once

#include <algorithm>
#include <vector>

#include "Positions.h"

namespace shardc::plan::oracle {

/// For each rank and group: the ranks that differ from it only in the group's axes, in the order of
/// their positions. Computed once for all orders.
class Members {
public:
  explicit Members(const Plan &plan) : positions_(plan) {
    for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
      std::vector<std::vector<int64_t>> &groups = of_.emplace_back();
      for (const Group &group : plan.groups)
        groups.push_back(membersOf(plan, rank, group));
    }
  }

  const std::vector<int64_t> &of(int64_t rank, int16_t group) const {
    return of_[static_cast<size_t>(rank)][static_cast<size_t>(group)];
  }

  const Positions &positions() const { return positions_; }

private:
  static std::vector<int64_t> membersOf(const Plan &plan, int64_t rank, const Group &group) {
    std::vector<int64_t> members;
    std::vector<int64_t> mine = coordinatesOf(plan, rank);
    const std::vector<uint16_t> &axes = group.axes;
    for (int64_t r = 0; r < plan.worldSize(); ++r) {
      std::vector<int64_t> theirs = coordinatesOf(plan, r);
      bool isMember = true;
      for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis)
        isMember = isMember && (theirs[axis] == mine[axis] ||
                                std::find(axes.begin(), axes.end(), axis) != axes.end());
      if (isMember)
        members.push_back(r);
    }
    auto along = [&](int64_t r) {
      std::vector<int64_t> theirs = coordinatesOf(plan, r), on;
      for (uint16_t axis : axes)
        on.push_back(theirs[axis]);
      return on;
    };
    std::ranges::sort(members, {}, along);
    return members;
  }

  std::vector<std::vector<std::vector<int64_t>>> of_;
  Positions positions_;
};

} // namespace shardc::plan::oracle
