#include "MutateParts.h"

#include "Facts.h"

namespace shardc::plan::oracle {

/// The bytes follow: the view lies where it looks, and looks at other elements.
std::string PartMutator::doChangeView() {
  std::vector<uint32_t> views = opsWhere([](const Op &o) { return o.kind == OpKind::View; });
  if (views.empty())
    return {};
  uint32_t i = pick(views);
  const Place whole = value(op(i).operands[0]).place;
  Value &part = value(op(i).results[0]);
  int64_t bytes = dtypeBytes(part.type.dtype), granule = 16 / bytes;
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
      opsWhere([](const Op &o) { return factsOf(o.kind).hasOwnPart || o.kind == OpKind::Shift; });
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

/// Alone, or with all collectives on it.
std::string PartMutator::doChangeChannelGroup() {
  if (plan_.channels.empty())
    return {};
  size_t index = below(plan_.channels.size());
  Channel &channel = plan_.channels[index];
  int16_t group = someGroup();
  if (group == channel.group)
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
