#include "Positions.h"

#include <algorithm>

namespace shardc::plan::oracle {

std::vector<int64_t> coordinatesOf(const Plan &plan, int64_t rank) {
  std::vector<int64_t> coordinates(plan.mesh.size());
  for (size_t axis = plan.mesh.size(); axis-- > 0; rank /= plan.mesh[axis].size)
    coordinates[axis] = rank % plan.mesh[axis].size;
  return coordinates;
}

int64_t indexOf(const Plan &plan, int16_t group, int64_t rank) {
  if (group < 0)
    return 0;
  const std::vector<uint16_t> &axes = plan.groups[static_cast<size_t>(group)].axes;
  std::vector<int64_t> own = coordinatesOf(plan, rank);
  int64_t before = 0;
  for (int64_t other = 0; other < plan.worldSize(); ++other) {
    std::vector<int64_t> theirs = coordinatesOf(plan, other), along, ownAlong;
    bool isMember = true;
    for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis)
      isMember =
          isMember && (std::ranges::find(axes, axis) != axes.end() || own[axis] == theirs[axis]);
    for (uint16_t axis : axes)
      along.push_back(theirs[axis]), ownAlong.push_back(own[axis]);
    before += isMember && along < ownAlong ? 1 : 0;
  }
  return before;
}

uint32_t roleOf(const Plan &plan, int64_t rank) {
  std::vector<int64_t> coordinates = coordinatesOf(plan, rank);
  for (uint32_t role = 0; role < plan.roles.size(); ++role)
    if (std::all_of(plan.roles[role].where.begin(), plan.roles[role].where.end(),
                    [&](const AxisRange &range) {
                      return coordinates[range.axis] >= range.begin &&
                             coordinates[range.axis] < range.end;
                    }))
      return role;
  return 0;
}

} // namespace shardc::plan::oracle
