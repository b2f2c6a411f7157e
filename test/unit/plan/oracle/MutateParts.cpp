#include "MutateParts.h"

#include "Facts.h"

namespace shardc::plan::oracle {

/// Changes the elements of a view; its place changes with them.
std::string PartMutator::doChangeView() {
  std::vector<uint32_t> views = opsWhere([](const Op &o) { return o.kind == OpKind::View; });
  if (views.empty())
    return {};
  uint32_t i = pick(views);
  const Place whole = value(op(i).operands[0]).place;
  Value &part = value(op(i).results[0]);
  int64_t bytes = dtypeBytes(part.type.dtype), granule = std::max<int64_t>(16 / bytes, 1);
  int64_t offset = op(i).getInt(AttrKey::offset), coef = op(i).getInt(AttrKey::coef);
  int16_t group = op(i).group;
  switch (below(4)) {
  case 0:
    offset += below(2) == 0 ? granule : -granule;
    break;
  case 1:
    coef += below(2) == 0 ? granule : -granule;
    break;
  case 2:
    coef = coef == 0 ? part.type.numel() : 0;
    break;
  default:
    group = someGroup();
  }
  if (coef != 0 && group < 0)
    group = someGroup();
  bool isLike = offset == op(i).getInt(AttrKey::offset) && coef == op(i).getInt(AttrKey::coef) &&
                group == op(i).group;
  if (isLike || (coef != 0 && (group < 0 || (whole.coef != 0 && whole.group != group))))
    return {};
  op(i).set(AttrKey::offset, offset);
  op(i).set(AttrKey::coef, coef);
  op(i).group = coef == 0 ? int16_t{-1} : group;
  part.place.offset = whole.offset + offset * bytes;
  part.place.coef = whole.coef + coef * bytes;
  part.place.group = part.place.coef == 0 ? int16_t{-1} : coef != 0 ? group : whole.group;
  return at(i, fmt::format("the view begins at {} + {} of group {}", offset, coef, op(i).group));
}

std::string PartMutator::doChangeIndex() {
  std::vector<uint32_t> ops =
      opsWhere([](const Op &o) { return factsOf(o).hasOwnPart || o.kind == OpKind::Shift; });
  if (ops.empty())
    return {};
  uint32_t i = pick(ops);
  if (op(i).kind == OpKind::Shift) {
    int64_t by = op(i).getInt(AttrKey::by) + (below(2) == 0 ? 1 : -1);
    op(i).set(AttrKey::by, by);
    return at(i, fmt::format("shifted by {}", by));
  }
  int16_t group = below(2) == 0 ? int16_t{-1} : someGroup();
  if (group == op(i).group)
    return {};
  op(i).group = group;
  return at(i, fmt::format("by the index in group {}", group));
}

/// Replaces a reduce_scatter by an all_reduce, from which each rank then takes wrong rows: all
/// ranks the same rows, or each the rows of the opposite rank.
std::string PartMutator::doChangeRows() {
  std::vector<uint32_t> scatters = opsWhere([](const Op &o) {
    return o.kind == OpKind::ReduceScatter && o.results.size() == 1 && o.ties.empty();
  });
  if (scatters.empty())
    return {};
  uint32_t i = pick(scatters);
  const Op scatter = op(i);
  const Value sum = value(scatter.operands[0]), part = value(scatter.results[0]);
  if (sum.type.dtype != part.type.dtype || sum.place.coef != 0)
    return {};
  int64_t rows = part.type.numel(), last = plan_.groupSize(scatter.group) - 1;
  bool isReverse = below(2) == 0;
  int64_t offset =
      isReverse ? last * rows : static_cast<int64_t>(below(static_cast<size_t>(last + 1))) * rows;
  int64_t coef = isReverse ? -rows : 0, bytes = dtypeBytes(part.type.dtype);

  Op &reduce = insertOp(i, OpKind::AllReduce, sum.type, sum.place);
  ValueId all = reduce.results[0];
  reduce = scatter;
  reduce.kind = OpKind::AllReduce, reduce.results = {all};

  Place place = sum.place;
  place.offset += offset * bytes, place.coef = coef * bytes;
  place.group = coef == 0 ? int16_t{-1} : scatter.group;
  Op &view = insertOp(i + 1, OpKind::View, part.type, place);
  view.operands = {all};
  view.set(AttrKey::offset, offset), view.set(AttrKey::coef, coef);
  view.group = place.group;

  Op &copy = op(i + 2);
  copy.kind = OpKind::Cast, copy.operands = {view.results[0]};
  copy.group = -1, copy.channel = kNoChannel;
  copy.attrs.clear(), copy.waits.clear();
  return at(i, fmt::format("rows from {} + {} of each rank", offset, coef));
}

std::string PartMutator::doDropConjugate() {
  std::vector<uint32_t> exchanges = opsWhere([](const Op &o) {
    return o.phase == Phase::Backward &&
           (o.kind == OpKind::AllReduce || o.kind == OpKind::AllToAll || o.kind == OpKind::Shift);
  });
  if (exchanges.empty())
    return {};
  uint32_t i = pick(exchanges);
  std::string text = at(i, fmt::format("{} dropped", opInfo(op(i)).name));
  readInstead(op(i).results[0], op(i).operands[0]);
  removeOp(i);
  return text;
}

std::string PartMutator::doDropStatistic() {
  auto isGathered = [&](ValueId id) {
    return value(id).def != kNone && op(value(id).def).kind == OpKind::AllGather;
  };
  std::vector<uint32_t> takers = opsWhere([&](const Op &o) {
    return (o.kind == OpKind::VocabLoss && isGathered(o.operands[0])) ||
           (o.kind == OpKind::AttentionJoin && o.operands.size() == 4) ||
           o.kind == OpKind::AllReduceMax;
  });
  if (takers.empty())
    return {};
  uint32_t i = pick(takers);
  std::string text = at(i, fmt::format("{} of its own alone", opInfo(op(i)).name));
  if (op(i).kind == OpKind::VocabLoss) {
    op(i).operands[0] = op(value(op(i).operands[0]).def).operands[0];
    return text;
  }
  for (size_t r = 0; r < op(i).results.size(); ++r)
    readInstead(op(i).results[r], op(i).operands[r]);
  removeOp(i);
  return text;
}

bool PartMutator::isTakenOnce(ValueId id) const {
  std::ptrdiff_t count = std::ranges::count(segment_->outs, id, &Segment::Boundary::value);
  for (const Op &each : segment_->ops)
    count += std::ranges::count(each.operands, id) + std::ranges::count(each.ties, id, &Tie::value);
  return count == 1;
}

/// Removes one contribution to a sum. If it was the first, the op that adds to it begins the sum.
/// Ops that waited for the removed op wait for the op before it on its stream.
std::string PartMutator::doDropContribution() {
  auto addsTo = [](const Op &o) { return o.ties.size() == 1 && o.ties[0].kind == Tie::Acc; };
  // A dropped op, and the op that adds to it, or the dropped op itself.
  std::vector<std::pair<uint32_t, uint32_t>> drops;
  for (uint32_t i = 0; i < segment_->ops.size(); ++i) {
    if (!addsTo(op(i)))
      continue;
    if (op(i).results.size() == 1)
      drops.emplace_back(i, i);
    uint32_t first = value(op(i).ties[0].value).def;
    if (first != kNone && op(first).ties.empty() && !isAlias(op(first)) &&
        isTakenOnce(op(i).ties[0].value))
      drops.emplace_back(first, i);
  }
  if (drops.empty())
    return {};
  const std::pair<uint32_t, uint32_t> picked = pick(drops);
  uint32_t dropped = picked.first, adder = picked.second;
  std::string text = at(dropped, fmt::format("{} contributes nothing", opInfo(op(dropped)).name));
  if (dropped == adder)
    readInstead(op(dropped).results[0], op(dropped).ties[0].value);
  else
    op(adder).ties.clear();
  if (op(dropped).results.size() > 1) // the op also makes another value
    return text;
  std::vector<uint32_t> earlier = opsWhere([&](const Op &o) {
    return &o < &op(dropped) && !isAlias(o) && o.stream == op(dropped).stream;
  });
  for (Op &each : segment_->ops)
    if (!earlier.empty())
      std::ranges::replace(each.waits, dropped, earlier.back());
  removeOp(dropped);
  return text;
}

/// Whether both groups have the same members, in any order.
bool PartMutator::hasSameRanks(int16_t group, int16_t other) const {
  if (group < 0 || other < 0)
    return group == other;
  auto axesOf = [&](int16_t index) {
    std::vector<uint16_t> axes;
    for (uint16_t axis : plan_.groups[static_cast<size_t>(index)].axes)
      if (plan_.mesh[axis].size > 1)
        axes.push_back(axis);
    std::ranges::sort(axes);
    return axes;
  };
  return axesOf(group) == axesOf(other);
}

/// Moves a channel to another group, alone or with its collectives.
std::string PartMutator::doChangeChannelGroup() {
  if (plan_.channels.empty())
    return {};
  size_t index = below(plan_.channels.size());
  Channel &channel = plan_.channels[index];
  int16_t group = someGroup();
  if (hasSameRanks(group, channel.group)) // only the order of additions would change
    return {};
  channel.group = group;
  bool isAll = below(2) == 0;
  for (Role &role : plan_.roles)
    for (Segment &segment : role.segments)
      for (Op &each : segment.ops)
        if (isAll && each.channel == static_cast<ChannelId>(index))
          each.group = group;
  return fmt::format("channel {} is of group {}{}", channel.name, group,
                     isAll ? ", with its collectives" : "");
}

} // namespace shardc::plan::oracle
