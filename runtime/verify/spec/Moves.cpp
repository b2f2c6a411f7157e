// How collectives change placements. A collective that this table lacks is refused.
// clang-format off
//
//   all_gather      a shard of the first dimension                  -> the whole
//                   a shard of another one, or a mirrored shard     -> the whole, shard after shard
//                   a block divided over ..., G                     -> a block divided over ...
//                   own groups of rows, or their counts             -> the whole, a slot per rank
//   reduce_scatter  partial sums                                    -> a shard of dimension 0
//                   partial sums, shards of dimension d in order    -> a shard of d
//                   partial sums of rows, a slot of each rank       -> own groups of rows
//                   partial sums, with dimension d outermost        -> a shard of d
//                   a block of instances or partial sums            -> a block divided over ..., G
//   all_reduce      partial sums                                    -> the whole
//                   instances                                       -> their sum
//                   sums of contributions of several roles          -> their union
//                   the sums of a step                              -> those of all ranks
//   all_reduce_max  maxima of ranks' parts, or equal values         -> the whole
//   all_to_all      slices, with heads outermost                    -> heads, slice after slice
//                   heads, slice after slice                        -> slices, with heads outermost
//                   rows or counts of instances, or own groups      -> routed rows, and back
//   shift by        a shard, some distance from its member          -> the same, `by` further away
// clang-format on
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

/// Follows a sum over the ranks along an axis: partial sums give the whole, instances the sum over
/// all samples.
bool Walk::sumAlong(const At &at, State &state, uint16_t axis) {
  const Place *place = state.at(axis);
  const std::string &name = plan_.mesh[axis].name;
  if (place == nullptr)
    return refuse(at, fmt::format("sums over {} a value that is equal on all ranks", name));
  if (place->kind == Place::Part)
    state.remove(axis);
  else if (place->kind == Place::Instance)
    state.put({axis, Place::Summed});
  else
    return refuse(at, fmt::format("sums over {} a value that is not a partial sum there", name));
  if (at.op.getBool(AttrKey::average))
    state.edit().multiple.divide(plan_.mesh[axis].size);
  return true;
}

/// Sums a value along an axis. If all ranks add an equal mean, the result is the mean times the
/// number of ranks.
std::optional<State> Walk::summed(const At &at, State x, uint16_t axis) {
  bool isMean = !x.isSum() && terms_[x.term].op == OpKind::DotRows;
  if (x.at(axis) == nullptr && isMean && !at.op.getBool(AttrKey::average)) {
    x.edit().multiple.multiply(plan_.mesh[axis].size);
    return x;
  }
  if (!sumAlong(at, x, axis))
    return std::nullopt;
  return x;
}

std::optional<State> Walk::largest(const At &at, State x, uint16_t axis) {
  if (const Place *place = x.at(axis); place != nullptr && place->kind != Place::Largest)
    return refuse(at, "takes the maximum over ranks of a value that is divided among them");
  x.remove(axis);
  return x;
}

/// Whether the slices along these axes are not divided further along other context-parallel axes.
bool Walk::isInnermostSlice(const State &state, const std::vector<uint16_t> &axes) const {
  std::vector<uint16_t> context = compute_.mesh().axesOf(GroupKind::Context);
  return std::none_of(std::ranges::find(context, axes[0]), context.end(), [&](uint16_t other) {
    bool isOne = std::ranges::find(axes, other) != axes.end();
    return !isOne && state.at(other) && state.at(other)->isMirrored;
  });
}

std::optional<State> Walk::gathered(const At &at, State x, uint16_t axis) {
  const Place *place = x.at(axis);
  if (place != nullptr && place->kind == Place::OwnRows && x->order.kind == Order::Dims) {
    x.remove(axis);
    x.edit().slots |= uint64_t{1} << axis;
    return x;
  }
  if (place != nullptr && place->kind == Place::Instance && x->order.kind != Order::Transposed) {
    x.remove(axis);
    x.edit().pooled |= bitOf(axis);
    return x;
  }
  if (place == nullptr || place->kind != Place::Shard || place->distance != 0)
    return refuse(at, "gathers a value that is not sharded along " + plan_.mesh[axis].name);
  if (place->isMirrored && !isInnermostSlice(x, {axis}))
    return refuse(at, "gathers slices that are divided further along another axis");
  Place was = *place;
  x.remove(axis);
  if (compute_.mesh().localOuter(x, was.outer) == 1 && !was.isMirrored)
    return x;
  Order order = {Order::Gathered, bitOf(axis), was.isMirrored, was.outer, 1};
  int64_t inner = was.outer * (was.isMirrored ? 1 : plan_.mesh[axis].size);
  if (x->order.kind == Order::Gathered && x->order.isMirrored == was.isMirrored &&
      x->order.outer == inner) // already gathered along the next inner axis
    order.axes |= x->order.axes;
  else if (x->order.kind != Order::Dims)
    return refuse(at, "gathers elements that are in a different order");
  x.edit().order = order;
  return x;
}

/// For a value in order Gathered: this rank's part along the outermost of the gathered axes. If the
/// value has several copies, the part of the first copy.
State Walk::takenApart(State x, uint16_t axis) const {
  Order order = x->order;
  x.edit().copies = 1;
  x.put({axis, Place::Shard, order.isMirrored, false, order.outer});
  order.axes &= ~bitOf(axis);
  order.outer *= order.isMirrored ? 1 : plan_.mesh[axis].size;
  x.edit().order = order.axes == 0 ? Order() : order;
  return x;
}

std::optional<State> Walk::scattered(const At &at, State x, uint16_t axis) {
  if (const Place *place = x.at(axis); place != nullptr && place->kind == Place::Instance)
    return refuse(at, "scatters a sum over samples");
  if (!sumAlong(at, x, axis))
    return std::nullopt;
  if (uint64_t slot = uint64_t{1} << axis; (x->slots & slot) != 0) {
    x.edit().slots &= ~slot;
    x.put({axis, Place::OwnRows});
    return x;
  }
  if ((x->pooled & bitOf(axis)) != 0) {
    x.edit().pooled &= ~bitOf(axis);
    x.put({axis, Place::Instance});
    return x;
  }
  if (x->order.kind == Order::Dims) {
    x.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(x, 1)});
    return x;
  }
  int64_t n = plan_.mesh[axis].size;
  if (x->order.kind == Order::Transposed && x->order.inner % n == 0) {
    x.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(x, x->order.outer)});
    x.edit().order.inner /= n;
    if (x->order.inner == 1)
      x.edit().order = Order();
    return x;
  }
  if (x->order.kind != Order::Gathered || (x->order.axes & bitOf(axis)) == 0)
    return refuse(at, "scatters elements that are in a different order");
  return takenApart(std::move(x), axis);
}

std::optional<State> Walk::shifted(const At &at, State x, const std::vector<uint16_t> &axes) {
  const Place *first = x.at(axes[0]);
  int64_t n = compute_.mesh().members(axes);
  for (uint16_t axis : axes) {
    const Place *place = x.at(axis);
    bool isSlice = place != nullptr && place->kind == Place::Shard &&
                   place->distance == first->distance &&
                   (place->distance == 0 || place->isOfSeveral == (axes.size() > 1));
    if (!isSlice)
      return refuse(at, "shifts a value that is not a slice");
  }
  int64_t distance = ((first->distance + at.op.getInt(AttrKey::by)) % n + n) % n;
  for (uint16_t axis : axes) {
    Place moved = *x.at(axis);
    moved.distance = distance, moved.isOfSeveral = distance != 0 && axes.size() > 1;
    x.put(moved);
  }
  return x;
}

std::optional<State> Walk::exchanged(const At &at, State x, const std::vector<uint16_t> &axes) {
  const Mesh &mesh = compute_.mesh();
  const Place *first = x.at(axes[0]);
  int64_t n = mesh.members(axes);
  bool isShard = true;
  int64_t outer = first ? first->outer : 0;
  for (uint16_t axis : axes) {
    const Place *place = x.at(axis);
    isShard &= place != nullptr && place->kind == Place::Shard && place->distance == 0 &&
               place->isMirrored == first->isMirrored && place->outer == outer;
    outer *= isShard && !place->isMirrored ? mesh.size(axis) : 1; // the next axis divides this part
  }
  bool isOfSlices = isShard && first->isMirrored;
  if (isShard && (!isOfSlices || isInnermostSlice(x, axes)) && x->order.kind == Order::Transposed &&
      x->order.inner % n == 0) {
    int64_t heads = mesh.wholeOuter(x, x->order.outer);
    x.edit().order = {Order::Gathered, Mesh::bitsOf(axes), isOfSlices, first->outer, 1};
    for (uint16_t axis : axes) {
      x.put({axis, Place::Shard, false, false, heads});
      heads *= mesh.size(axis);
    }
    return x;
  }
  if (isShard && !isOfSlices && x->order.kind == Order::Gathered &&
      x->order.axes == Mesh::bitsOf(axes)) {
    outer = mesh.localOuter(x, first->outer) / n;
    for (uint16_t axis : axes)
      x = takenApart(std::move(x), axis);
    x.edit().order = {Order::Transposed, 0, false, outer, n};
    return x;
  }
  return refuse(at, "exchanges a value that is not sharded");
}

/// Follows an all_to_all that sends rows, or their counts, to the ranks of their experts or back.
std::optional<State> Walk::routed(const At &at, State x, const std::vector<uint16_t> &axes) {
  bool isBack = x.at(axes.front())->kind == Place::Routed;
  int64_t outer = 1; // number of parts into which earlier axes divide the experts
  for (uint16_t axis : axes) {
    Place place = *x.at(axis);
    if ((place.kind == Place::Routed) != isBack)
      return refuse(at, "exchanges rows, some of which were exchanged before");
    bool ownRows = isBack ? place.wasOwnRows : place.kind == Place::OwnRows;
    if (isBack)
      x.put({axis, ownRows ? Place::OwnRows : Place::Instance});
    else
      x.put({axis, Place::Routed, false, ownRows, outer});
    outer *= compute_.mesh().size(axis);
  }
  return x;
}

std::optional<State> Walk::moved(const At &at, const State &from) {
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  State x = from;
  if (axes.empty())
    return x;
  if (isSpecification_ && at.op.kind == OpKind::AllReduce) { // a sum over the samples of all ranks
    x.term = terms_.of({Term::Apply, OpKind::AllReduce, 0, 0, {}, {x.term}});
    terms_.setShape(x.term, x->whole);
    return x;
  }
  auto isRow = [&](uint16_t axis) {
    const Place *place = x.at(axis);
    return place != nullptr && (place->kind == Place::Instance || place->kind == Place::Routed ||
                                place->kind == Place::OwnRows);
  };
  if (at.op.kind == OpKind::AllToAll && std::ranges::all_of(axes, isRow))
    return x->order.kind == Order::Dims
               ? routed(at, x, axes)
               : refuse(at, "exchanges rows whose elements are in a different order");
  if (at.op.kind == OpKind::Shift)
    return shifted(at, std::move(x), axes);
  if (at.op.kind == OpKind::AllToAll)
    return exchanged(at, std::move(x), axes);
  using Move = std::optional<State> (Walk::*)(const At &, State, uint16_t);
  static constexpr std::pair<OpKind, Move> kMoves[] = {{OpKind::AllGather, &Walk::gathered},
                                                       {OpKind::ReduceScatter, &Walk::scattered},
                                                       {OpKind::AllReduce, &Walk::summed},
                                                       {OpKind::AllReduceMax, &Walk::largest}};
  bool isFromLast = at.op.kind == OpKind::AllGather;
  for (size_t i = 0; i < axes.size(); ++i) {
    uint16_t axis = axes[isFromLast ? axes.size() - 1 - i : i];
    auto move = std::ranges::find(kMoves, at.op.kind, &std::pair<OpKind, Move>::first);
    if (move == std::end(kMoves))
      return refuse(at, "moves a value in an unknown way");
    std::optional<State> next = (this->*move->second)(at, x, axis);
    if (!next)
      return std::nullopt;
    x = std::move(*next);
  }
  return at.op.kind == OpKind::AllReduce ? summedOverSamples(std::move(x)) : x;
}

/// If the model itself has this sum over the samples of all ranks, the value is whole on each rank.
State Walk::summedOverSamples(State x) {
  auto isSummed = [&](uint16_t axis) {
    const Place *place = x.at(axis);
    return place != nullptr && place->kind == Place::Summed;
  };
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

std::optional<Walk::Values> Walk::movedBlock(const At &at, const BlockState &from) {
  const Block &block = plan_.blocks[static_cast<size_t>(from.block)];
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  BlockState x = from;
  if (at.op.kind == OpKind::AllGather) {
    bool isLast =
        axes.size() <= x.axes.size() && std::equal(axes.rbegin(), axes.rend(), x.axes.rbegin());
    bool isOfMatrices = !isLast && axes == axesOfMatrices(from.block) && !x.params.empty() &&
                        terms_[x.params[0].term].op == OpKind::MuonUpdate;
    if (!x.joined.empty() || !(isLast || isOfMatrices))
      return refuse(at, "gathers over ranks other than those with the shards");
    if (isOfMatrices)
      x.joined = axes;
    else
      x.axes.resize(x.axes.size() - axes.size());
    return Values{Value::of(std::move(x))};
  }
  if (at.op.kind != OpKind::AllReduce && at.op.kind != OpKind::ReduceScatter)
    return refuse(at, "moves a block in an unknown way");
  for (State &param : x.params)
    for (uint16_t axis : axes)
      if (!sumAlong(at, param, axis))
        return std::nullopt;
  Values made;
  if (at.op.kind == OpKind::ReduceScatter) {
    x.axes.insert(x.axes.end(), axes.begin(), axes.end());
    if (divided(block, typeOf(at, at.op.results[0]).numel()) != x.axes)
      return refuse(at, "scatters to ranks other than those with the shards");
  }
  made.push_back(Value::of(std::move(x)));
  if (at.op.results.size() > 1)
    made.push_back(Value::ofKind(Value::Squares)); // finish() sets its list
  return made;
}

/// Scales a gradient by the op's attribute. A step compares the multiple with the job's average.
bool Walk::scaleGradient(const At &at, State &gradient) {
  double scale = at.op.getFloat(AttrKey::scale);
  std::optional<Multiple> multiple = Multiple::of(scale, plan_.worldSize());
  if (!multiple)
    return refuse(at, fmt::format("scales by {}, which is not a ratio of ranks", scale));
  if (!multiple->isOne())
    gradient.edit().multiple.multiply(*multiple);
  return true;
}

/// A cast of gradients to the type of their reduction, which may scale them.
std::optional<Walk::Values> Walk::followCast(const At &at, BlockState block) {
  for (State &param : block.params) { // the job chooses the types of gradient sums
    if (!param.isSum() && param.microbatch < 0)
      param.term = terms_.rounded(typeOf(at, at.op.results[0]).dtype, param.term);
    if (!scaleGradient(at, param))
      return std::nullopt;
  }
  return Values{Value::of(std::move(block))};
}

std::optional<Walk::Values> Walk::followMove(const At &at) {
  const Value &x = operand(at, 0);
  if (x.isBlock())
    return movedBlock(at, *x.block);
  if (x.kind == Value::Packed) {
    std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
    size_t all =
        std::ranges::count_if(plan_.mesh, [](const MeshAxis &axis) { return axis.size > 1; });
    if (at.op.kind != OpKind::AllReduce || axes.size() != all || at.op.getBool(AttrKey::average))
      return refuse(at, "does not sum over all ranks");
    Value reduced = x;
    reduced.kind = Value::Reduced;
    return Values{reduced};
  }
  if (x.kind == Value::Largest)
    return movedMaxima(at, *x.maxima);
  if (!x.isOne())
    return refuse(at, "moves a value that is not followed");
  std::optional<State> made = moved(at, x.state);
  if (!made)
    return std::nullopt;
  return Values{Value::of(std::move(*made))};
}

/// The roles that take part in a sum over ranks of several roles; empty if all its ranks have one
/// role.
std::vector<uint32_t> Walk::rolesApart(const At &at) const {
  std::vector<uint32_t> roles;
  const Channel *channel =
      at.op.channel >= 0 ? &plan_.channels[static_cast<size_t>(at.op.channel)] : nullptr;
  for (uint16_t axis : compute_.mesh().axesOf(at.op.group)) {
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
bool Walk::meet(const At &at, Values &made, bool &isBlocked) {
  RoleWalk &role = at.role;
  std::pair key = {at.op.channel, role.turns[at.op.channel]};
  auto &meeting = meetings_[key];
  meeting.insert_or_assign(role.index, operand(at, 0));
  std::vector<uint32_t> roles = rolesApart(at);
  isBlocked = meeting.size() < roles.size();
  if (isBlocked)
    return true;
  ++role.turns[at.op.channel];
  std::optional<Value> sum;
  for (auto &[index, value] : meeting)
    if (value.kind == Value::Unfollowed) {
      made = {value};
      return true;
    }
  for (auto &[index, value] : meeting)
    if (!(sum = sum ? added(at, *sum, value) : value))
      return false;
  for (uint16_t axis : compute_.mesh().axesOf(at.op.group))
    if (sum->isOne() && extentOf(*role.role, axis) == plan_.mesh[axis].size &&
        !sumAlong(at, sum->state, axis))
      return false;
  made = {*sum};
  return true;
}

/// The role's coordinate on the axis of a transfer's channel.
int64_t Walk::coordinate(const RoleWalk &walk, const Op &op) const {
  const Channel &channel = plan_.channels[static_cast<size_t>(op.channel)];
  for (uint16_t axis : compute_.mesh().axesOf(channel.group))
    for (const AxisRange &range : walk.role->where)
      if (range.axis == axis)
        return range.begin;
  return 0;
}

} // namespace shardc::plan::spec
