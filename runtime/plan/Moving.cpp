// Adds offsets that depend on indices in groups. The sum depends on a single group if that group's
// axes are the axes of both groups, one after the other.
#include "runtime/plan/Coordinates.h"

#include <vector>

namespace shardc::plan {
namespace {

/// Appends the axes of the group whose size is above 1.
void appendAxes(const Plan &plan, int16_t group, std::vector<uint16_t> &axes) {
  if (group < 0)
    return;
  for (uint16_t axis : plan.groups[static_cast<size_t>(group)].axes)
    if (plan.mesh[axis].size > 1)
      axes.push_back(axis);
}

/// The sum without offsets, if its axes are those of `outer` followed by those of `inner` and the
/// coefficients fit.
std::optional<Moving> nested(const Plan &plan, const Moving &outer, const Moving &inner) {
  int64_t coef = 0;
  if (__builtin_mul_overflow(inner.coef, plan.groupSize(inner.group), &coef) || coef != outer.coef)
    return std::nullopt;
  for (size_t group = 0; group < plan.groups.size(); ++group)
    if (auto index = static_cast<int16_t>(group);
        isComposedOf(plan, index, outer.group, inner.group))
      return Moving{0, inner.coef, index};
  return std::nullopt;
}

} // namespace

Moving beginOf(const Op &view) {
  int64_t coef = view.getInt(AttrKey::coef);
  return {view.getInt(AttrKey::offset), coef, coef == 0 ? int16_t{-1} : view.group};
}

std::optional<Moving> sumOf(const Plan &plan, const Moving &a, const Moving &b) {
  std::optional<Moving> sum;
  if (a.isFixed() || b.isFixed() || a.group == b.group) {
    int64_t coef = a.coef + b.coef;
    sum = Moving{0, coef, coef == 0 ? int16_t{-1} : a.isFixed() ? b.group : a.group};
  } else if (sum = nested(plan, a, b); !sum) {
    sum = nested(plan, b, a);
  }
  if (sum)
    sum->offset = a.offset + b.offset;
  return sum;
}

bool isComposedOf(const Plan &plan, int16_t group, int16_t first, int16_t second) {
  std::vector<uint16_t> axes, parts;
  appendAxes(plan, group, axes);
  appendAxes(plan, first, parts);
  appendAxes(plan, second, parts);
  return axes == parts;
}

} // namespace shardc::plan
