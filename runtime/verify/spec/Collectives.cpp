// Follows collectives, and casts of what they reduce: the MOVE rows for values, and rules of their
// own for blocks, for sums over several roles, and for the sums of a step.
#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

int64_t Walk::extentOf(const Role &role, uint16_t axis) const {
  for (const AxisRange &range : role.where)
    if (range.axis == axis)
      return range.end - range.begin;
  return plan_.mesh[axis].size;
}

/// The value after a collective of this kind over the group of the op. Figures that a run reports
/// are sums over all ranks: where ranks have equal ones, each has its share by the model's scale.
State Walk::moved(const At &at, OpKind kind, const State &x, const std::vector<uint16_t> &axes) {
  if (kind == OpKind::AllReduce && !at.role.segment().body && isTallied(x)) {
    State sum = x;
    for (uint16_t axis : axes) {
      const Place *place = x.at(axis);
      bool isOfRank = !place || place->kind == Place::Part || place->kind == Place::Instance;
      if (!isOfRank || at.op.getBool(AttrKey::average))
        return refuse(at, "does not add the figures of ranks");
      sum.put({axis, Place::Summed});
    }
    return sum;
  }
  State made =
      mover_.moved({kind, axes, at.op.getInt(AttrKey::by), at.op.getBool(AttrKey::average)}, x);
  if (!mover_.why().empty())
    refuseAt(at, mover_.why());
  return made;
}

State Walk::moved(const At &at, const State &x) {
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
  bool isSum = at.op.kind == OpKind::AllReduce;
  if (axes.empty())
    return x;
  State made = x;
  if (isSpecification_ && isSum) { // a sum over the samples of all ranks
    made.term = terms_.of({Term::Apply, OpKind::AllReduce, 0, 0, {}, {x.term}});
    terms_.setShape(made.term, made->whole);
    return made;
  }
  // If all ranks add an equal mean, the result is the mean times the number of ranks.
  if (isSum && !x.isSum() && terms_[x.term].op == OpKind::DotRows &&
      !at.op.getBool(AttrKey::average))
    std::erase_if(axes, [&](uint16_t axis) {
      bool isEqual = x.at(axis) == nullptr;
      if (isEqual)
        made.edit().multiple.multiply(mesh_.size(axis));
      return isEqual;
    });
  made = moved(at, at.op.kind, made, axes);
  return isSum ? summedOverSamples(std::move(made)) : made;
}

/// If the model itself has this sum over the samples of all ranks, the value is whole on each rank.
State Walk::summedOverSamples(State x) {
  auto isSummed = [&](uint16_t axis) { return x.is(axis, Place::Summed); };
  if (x.isSum() || x.microbatch < 0 || !std::ranges::all_of(dataAxes_, isSummed) ||
      dataAxes_.empty() || !x->multiple.isOne())
    return x;
  TermId all = terms_.of({Term::Apply, OpKind::AllReduce, 0, 0, {}, {x.term}});
  if (!terms_.isOfModel(all))
    return x;
  x.term = all;
  for (uint16_t axis : dataAxes_)
    x.remove(axis);
  return x;
}

Values Walk::movedBlock(const At &at, BlockState x) {
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
  if (at.op.kind == OpKind::AllGather) {
    bool isLast =
        axes.size() <= x.axes.size() && std::equal(axes.rbegin(), axes.rend(), x.axes.rbegin());
    bool isOfMatrices = !isLast && axes == axesOfMatrices(x.block) && !x.params.empty() &&
                        terms_[x.params[0].term].op == OpKind::MuonUpdate;
    if (!x.joined.empty() || !(isLast || isOfMatrices))
      return refuse(at, "gathers over ranks other than those with the shards");
    if (isOfMatrices)
      x.joined = axes;
    else
      x.axes.resize(x.axes.size() - axes.size());
    return {std::move(x)};
  }
  bool isScatter = at.op.kind == OpKind::ReduceScatter;
  if (at.op.kind != OpKind::AllReduce && !isScatter)
    return refuse(at, "moves a block in an unknown way");
  for (State &param : x.params)
    param = moved(at, OpKind::AllReduce, param, axes);
  if (isScatter)
    x.axes.insert(x.axes.end(), axes.begin(), axes.end());
  if (isScatter && divided(x.block, typeOf(at, at.op.results[0]).numel()) != x.axes)
    return refuse(at, "scatters to ranks other than those with the shards");
  Values made = {std::move(x)};
  if (at.op.results.size() > 1)
    made.push_back(Value::Squares); // finish() sets its list
  return made;
}

/// Scales a gradient by the op's attribute. A step compares the multiple with the job's average.
void Walk::scaleGradient(const At &at, State &gradient) {
  double scale = at.op.getFloat(AttrKey::scale);
  std::optional<Multiple> multiple = Multiple::of(scale, plan_.worldSize());
  if (!multiple)
    refuse(at, "scales by {}, which is not a ratio of ranks", scale);
  else if (!multiple->isOne())
    gradient.edit().multiple.multiply(*multiple);
}

/// A cast of gradients to the type of their reduction, which may scale them.
Values Walk::castBlock(const At &at, BlockState block) {
  for (State &param : block.params) { // the job chooses the types of gradient sums
    if (!param.isSum() && param.microbatch < 0)
      param.term = terms_.rounded(typeOf(at, at.op.results[0]).dtype, param.term);
    scaleGradient(at, param);
  }
  return {std::move(block)};
}

Values Walk::followMove(const At &at) {
  const Value &x = operand(at, 0);
  if (x.isBlock())
    return movedBlock(at, *x.block);
  if (x.kind == Value::Packed) {
    size_t all =
        std::ranges::count_if(plan_.mesh, [](const MeshAxis &axis) { return axis.size > 1; });
    if (at.op.kind != OpKind::AllReduce || mesh_.axesOf(at.op.group).size() != all ||
        at.op.getBool(AttrKey::average))
      return refuse(at, "does not sum over all ranks");
    Value reduced = x;
    reduced.kind = Value::Reduced;
    return {reduced};
  }
  if (x.kind == Value::Largest)
    return movedMaxima(at, *x.maxima);
  if (!x.isOne())
    return refuse(at, "moves a value that is not followed");
  return {moved(at, x.state)};
}

/// The roles that take part in a sum over ranks of several roles; empty if all its ranks have one
/// role.
std::vector<uint32_t> Walk::rolesApart(const At &at) const {
  std::vector<uint32_t> roles;
  const Channel *channel =
      at.op.channel >= 0 ? &plan_.channels[static_cast<size_t>(at.op.channel)] : nullptr;
  for (uint16_t axis : mesh_.axesOf(at.op.group)) {
    if (extentOf(*at.role.role, axis) == plan_.mesh[axis].size)
      continue;
    for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
      bool isIn = channel == nullptr || !channel->isPair();
      for (const AxisRange &range : plan_.roles[r].where)
        if (!isIn && range.axis == axis)
          for (int32_t member : channel->pair)
            isIn |= member >= range.begin && member < range.end;
      if (isIn)
        roles.push_back(r);
    }
    return roles;
  }
  return roles;
}

/// Follows a sum over several roles, each of which has its own contributions. Blocks until all of
/// these roles have reached it.
Values Walk::meet(const At &at, bool &isBlocked) {
  RoleWalk &role = at.role;
  auto &meeting = meetings_[{at.op.channel, role.turns[at.op.channel]}];
  meeting.insert_or_assign(role.index, operand(at, 0));
  isBlocked = meeting.size() < rolesApart(at).size();
  if (isBlocked)
    return {};
  ++role.turns[at.op.channel];
  Value sum;
  for (auto &[index, value] : meeting)
    sum = sum.kind == Value::Unknown ? value : added(at, sum, value);
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group); // within the role
  std::erase_if(axes,
                [&](uint16_t axis) { return extentOf(*role.role, axis) != plan_.mesh[axis].size; });
  if (sum.isOne())
    sum.state = moved(at, OpKind::AllReduce, sum.state, axes);
  return {sum};
}

/// The role's coordinate on the axis of a transfer's channel.
int64_t Walk::coordinate(const RoleWalk &walk, const Op &op) const {
  const Channel &channel = plan_.channels[static_cast<size_t>(op.channel)];
  for (uint16_t axis : mesh_.axesOf(channel.group))
    for (const AxisRange &range : walk.role->where)
      if (range.axis == axis)
        return range.begin;
  return 0;
}

} // namespace shardc::plan::spec
