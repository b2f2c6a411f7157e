// The position of a rank in the mesh, and the members of its groups.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// A rank's coordinate on each axis of the mesh. The last axis varies fastest with the rank.
std::vector<int64_t> meshCoords(const plan::Plan &plan, int64_t rank);

/// The role of a rank, as an index in Plan::roles. Each rank has exactly one role.
uint32_t roleOf(const plan::Plan &plan, int64_t rank);

/// The rank's index among the members of its instance of a group; 0 for group -1.
int64_t indexIn(const plan::Plan &plan, int group, int64_t rank);

/// A rank's index in each group of the plan.
class GroupIndices {
public:
  GroupIndices() = default;
  GroupIndices(const plan::Plan &plan, int64_t rank);
  /// The index in the rank's instance of the group; 0 for group -1.
  int64_t of(int group) const { return group < 0 ? 0 : indices_[static_cast<size_t>(group)]; }

private:
  std::vector<int64_t> indices_;
};

/// The ranks of the rank's instance of a group, in group order: sorted by their coordinates on the
/// group's axes.
std::vector<int> groupMembers(const plan::Plan &plan, int group, int64_t rank);
/// The members of the rank's instance of a channel: its whole group, or a pair.
std::vector<int> channelMembers(const plan::Plan &plan, plan::ChannelId channel, int64_t rank);

} // namespace shardc::exec
