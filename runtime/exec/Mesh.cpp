// Converts between ranks and coordinates. Ranks count in row-major order: the last axis of the mesh
// varies fastest.
#include "runtime/exec/Mesh.h"

#include <algorithm>

#include "runtime/base/Status.h"

namespace shardc::exec {

std::vector<int64_t> meshCoords(const plan::Plan &plan, int64_t rank) {
  std::vector<int64_t> coords(plan.mesh.size());
  for (size_t axis = plan.mesh.size(); axis-- > 0;) {
    coords[axis] = rank % plan.mesh[axis].size;
    rank /= plan.mesh[axis].size;
  }
  return coords;
}

namespace {

int64_t indexAt(const plan::Plan &plan, const plan::Group &group,
                const std::vector<int64_t> &coords) {
  int64_t index = 0;
  for (uint16_t axis : group.axes)
    index = index * plan.mesh[axis].size + coords[axis];
  return index;
}

} // namespace

uint32_t roleOf(const plan::Plan &plan, int64_t rank) {
  std::vector<int64_t> coords = meshCoords(plan, rank);
  auto has = [&](const plan::Role &role) {
    return std::ranges::all_of(role.where, [&](const plan::AxisRange &range) {
      return range.begin <= coords[range.axis] && coords[range.axis] < range.end;
    });
  };
  auto at = std::ranges::find_if(plan.roles, has);
  SHARDC_CHECK(at != plan.roles.end(), "rank {} has no role", rank);
  return static_cast<uint32_t>(at - plan.roles.begin());
}

int64_t indexIn(const plan::Plan &plan, int group, int64_t rank) {
  return group < 0 ? 0 : indexAt(plan, plan.groups[group], meshCoords(plan, rank));
}

GroupIndices::GroupIndices(const plan::Plan &plan, int64_t rank) {
  std::vector<int64_t> coords = meshCoords(plan, rank);
  for (const plan::Group &group : plan.groups)
    indices_.push_back(indexAt(plan, group, coords));
}

std::vector<int> groupMembers(const plan::Plan &plan, int group, int64_t rank) {
  const std::vector<uint16_t> &axes = plan.groups[group].axes;
  std::vector<int64_t> coords = meshCoords(plan, rank);
  std::vector<int> members;
  // Enumerates the coordinates on the group's axes, the last axis fastest; all other coordinates
  // stay fixed.
  for (uint16_t axis : axes)
    coords[axis] = 0;
  while (true) {
    int64_t member = 0;
    for (size_t axis = 0; axis < plan.mesh.size(); ++axis)
      member = member * plan.mesh[axis].size + coords[axis];
    members.push_back(static_cast<int>(member));
    size_t i = axes.size();
    while (i > 0 && ++coords[axes[i - 1]] == plan.mesh[axes[i - 1]].size)
      coords[axes[--i]] = 0;
    if (i == 0)
      return members;
  }
}

std::vector<int> channelMembers(const plan::Plan &plan, plan::ChannelId channel, int64_t rank) {
  const plan::Channel &of = plan.channels[static_cast<size_t>(channel)];
  std::vector<int> members = groupMembers(plan, of.group, rank);
  if (!of.isPair())
    return members;
  return {members[static_cast<size_t>(of.pair[0])], members[static_cast<size_t>(of.pair[1])]};
}

} // namespace shardc::exec
