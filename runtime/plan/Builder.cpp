// Basic operations on plans that keep indices and definitions consistent: values, ops, users,
// groups, channels.
#include "runtime/plan/Builder.h"

#include <algorithm>

#include "runtime/base/Status.h"

namespace shardc::plan {

ValueId addValue(Segment &segment, std::string name, const Type &type, Purpose purpose) {
  Value value;
  value.name = std::move(name);
  value.type = type;
  value.purpose = purpose;
  segment.values.push_back(std::move(value));
  return static_cast<ValueId>(segment.values.size() - 1);
}

uint32_t addCell(Role &role, std::string name, CellOf kind, const Type &type, Arena arena,
                 Purpose purpose) {
  Cell cell;
  cell.name = std::move(name);
  cell.kind = kind.kind;
  cell.of = kind.of;
  cell.type = type;
  cell.arena = arena;
  cell.purpose = purpose;
  role.cells.push_back(std::move(cell));
  return static_cast<uint32_t>(role.cells.size()) - 1;
}

void changeType(Role &role, uint32_t cell, DType dtype) {
  role.cells[cell].type.dtype = dtype;
  for (Segment &segment : role.segments)
    for (const std::vector<Segment::Boundary> *side : {&segment.ins, &segment.outs})
      for (const Segment::Boundary &boundary : *side)
        if (boundary.cell == cell)
          segment.values[boundary.value].type.dtype = dtype;
}

ValueId addLiveIn(Segment &segment, std::string name, const Role &role, uint32_t cell) {
  ValueId value =
      addValue(segment, std::move(name), role.cells[cell].type, role.cells[cell].purpose);
  segment.ins.push_back({value, cell});
  return value;
}

Op makeOp(OpKind kind, std::initializer_list<ValueId> operands, int32_t unit, uint32_t loc) {
  Op op{};
  op.kind = kind;
  op.operands = operands;
  op.unit = unit;
  op.loc = loc;
  return op;
}

int16_t groupOf(Plan &plan, std::vector<uint16_t> axes, std::string name) {
  auto found = std::ranges::find(plan.groups, axes, &Group::axes);
  auto index = static_cast<int16_t>(found - plan.groups.begin());
  if (found != plan.groups.end())
    return index;
  if (name.empty())
    for (uint16_t axis : axes)
      name += (name.empty() ? "" : "_") + plan.mesh[axis].name;
  plan.groups.push_back({std::move(name), std::move(axes)});
  return index;
}

namespace {

/// Position of the first of the fastest-varying axes of the group that together have `ranks` ranks.
std::ptrdiff_t firstInner(const Plan &plan, const Group &group, int64_t ranks) {
  auto cut = group.axes.end();
  int64_t found = 1;
  while (found < ranks && cut != group.axes.begin())
    found *= plan.mesh[*--cut].size;
  SHARDC_CHECK(found == ranks, "no axes of '{}' have {} ranks", group.name, ranks);
  return cut - group.axes.begin();
}

} // namespace

int16_t innerGroupOf(Plan &plan, int16_t group, int64_t ranks) {
  const Group &whole = plan.groups[static_cast<size_t>(group)];
  auto cut = whole.axes.begin() + firstInner(plan, whole, ranks);
  return cut == whole.axes.end() ? int16_t{-1} : groupOf(plan, {cut, whole.axes.end()});
}

int16_t outerGroupOf(Plan &plan, int16_t group, int64_t ranks) {
  const Group &whole = plan.groups[static_cast<size_t>(group)];
  auto cut = whole.axes.begin() + firstInner(plan, whole, ranks);
  if (cut == whole.axes.end())
    return group;
  return cut == whole.axes.begin() ? int16_t{-1} : groupOf(plan, {whole.axes.begin(), cut});
}

int16_t groupToCutOf(const Plan &plan, GroupKind kind) {
  int16_t group = groupOfKind(plan, kind);
  return plan.groupSize(group) > 1 ? group : int16_t{-1};
}

StreamId streamOf(Plan &plan, StreamKind kind) {
  auto at = std::ranges::find(plan.streams, kind, &Stream::kind);
  auto index = static_cast<StreamId>(at - plan.streams.begin());
  if (at != plan.streams.end())
    return index;
  std::string name(toString(kind));
  while (std::ranges::find(plan.streams, name, &Stream::name) != plan.streams.end())
    name += "_"; // a stream of another kind has this name, in a plan written by hand
  plan.streams.push_back({std::move(name), kind});
  return index;
}

ChannelId channelOf(Plan &plan, int16_t group, StreamKind stream, Transport transport,
                    std::string_view name) {
  StreamId on = streamOf(plan, stream);
  auto at = std::ranges::find_if(plan.channels, [&](const Channel &each) {
    return each.group == group && each.stream == on && each.transport == transport &&
           !each.isPair();
  });
  auto index = static_cast<ChannelId>(at - plan.channels.begin());
  if (at != plan.channels.end())
    return index;
  std::string own(name);
  if (std::ranges::find(plan.channels, own, &Channel::name) != plan.channels.end())
    own += "." + plan.groups[static_cast<size_t>(group)].name;
  plan.channels.push_back({std::move(own), group, transport, 0, on});
  return index;
}

ChannelId pairChannelOf(Plan &plan, int16_t group, std::array<int32_t, 2> pair, StreamKind stream,
                        std::string name) {
  StreamId on = streamOf(plan, stream);
  auto at = std::ranges::find_if(plan.channels, [&](const Channel &each) {
    return each.group == group && each.stream == on && each.pair == pair;
  });
  auto index = static_cast<ChannelId>(at - plan.channels.begin());
  if (at == plan.channels.end()) {
    Channel channel;
    channel.name = std::move(name);
    channel.group = group;
    channel.pair = pair;
    channel.stream = on;
    plan.channels.push_back(std::move(channel));
  }
  return index;
}

void setChannel(const Plan &plan, Op &op, ChannelId channel) {
  op.channel = channel;
  op.group = plan.channels[static_cast<size_t>(channel)].group;
}

uint32_t append(Segment &segment, Op op) {
  auto index = static_cast<uint32_t>(segment.ops.size());
  for (const Attr &attr : op.attrs) // which may be copied from another op
    SHARDC_CHECK(opInfo(op).attrs.has(attr.key), "'{}' has no attribute '{}'", opInfo(op).name,
                 attrInfo(attr.key).name);
  if (op.phase == Phase::Other)
    op.phase = segmentKindInfo(segment.kind).phase;
  for (size_t r = 0; r < op.results.size(); ++r) {
    segment.values[op.results[r]].def = index;
    segment.values[op.results[r]].defResult = static_cast<uint8_t>(r);
  }
  segment.ops.push_back(std::move(op));
  return index;
}

void renumber(Segment &segment) {
  for (Value &value : segment.values)
    value.def = kNone;
  for (size_t i = 0; i < segment.ops.size(); ++i)
    for (size_t r = 0; r < segment.ops[i].results.size(); ++r) {
      Value &value = segment.values[segment.ops[i].results[r]];
      value.def = static_cast<uint32_t>(i);
      value.defResult = static_cast<uint8_t>(r);
    }
}

/// Counts the users of each value first, so that all lists fit one array: the users of value v are
/// ops_[starts_[v]] to ops_[starts_[v + 1] - 1].
Users::Users(const Segment &segment) : starts_(segment.values.size() + 1, 0) {
  auto visit = [&](auto &&record) {
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      for (ValueId value : segment.ops[i].operands)
        record(value, static_cast<uint32_t>(i));
      for (const Tie &tie : segment.ops[i].ties)
        record(tie.value, static_cast<uint32_t>(i));
    }
  };
  visit([&](ValueId value, uint32_t) { ++starts_[value + 1]; });
  for (size_t v = 1; v < starts_.size(); ++v)
    starts_[v] += starts_[v - 1];
  ops_.resize(starts_.back());
  std::vector<uint32_t> next(starts_.begin(), starts_.end() - 1);
  visit([&](ValueId value, uint32_t op) { ops_[next[value]++] = op; });
}

void replaceOps(Segment &segment, std::vector<Op> ops) {
  segment.ops = std::move(ops);
  renumber(segment);
}

uint32_t findCell(const Role &role, CellKind kind, int32_t of) {
  for (size_t i = 0; i < role.cells.size(); ++i)
    if (role.cells[i].kind == kind && role.cells[i].of == of)
      return static_cast<uint32_t>(i);
  return kNone;
}

std::vector<uint32_t> findCells(const Role &role, CellKind kind, size_t count) {
  std::vector<uint32_t> found(count, kNone);
  for (size_t i = role.cells.size(); i-- > 0;) // backwards: the first cell of its kind wins
    if (const Cell &cell = role.cells[i]; cell.kind == kind && cell.of >= 0)
      found[static_cast<size_t>(cell.of)] = static_cast<uint32_t>(i);
  return found;
}

uint32_t findSegment(const Role &role, SegmentKind kind) {
  auto found = std::ranges::find(role.segments, kind, &Segment::kind);
  return found == role.segments.end() ? kNone
                                      : static_cast<uint32_t>(found - role.segments.begin());
}

bool isLayer(const Plan &plan, int32_t unit) {
  return unit >= 0 && plan.units[static_cast<size_t>(unit)].kind == UnitKind::Layer;
}

ValueId liveInOf(const Segment &segment, uint32_t cell) {
  for (const Segment::Boundary &in : segment.ins)
    if (in.cell == cell)
      return in.value;
  return kNone;
}

void eraseOps(Segment &segment, const std::vector<uint8_t> &dead) {
  size_t at = 0;
  std::erase_if(segment.ops, [&](const Op &) { return dead[at++] != 0; });
  renumber(segment);
}

void removeDeadOps(Segment &segment) {
  removeDeadOps(segment, [](const Op &op) {
    OpTraits traits = opInfo(op).traits;
    return traits == OpTraits::Pure || traits == OpTraits::Alias;
  });
}

/// Removes ops for which `mayGo` holds and whose results nobody uses. It goes through the ops from
/// the last to the first, so that an op also goes if only removed ops used it.
void removeDeadOps(Segment &segment, bool (*mayGo)(const Op &)) {
  std::vector<uint8_t> used(segment.values.size(), 0);
  for (const Segment::Boundary &out : segment.outs)
    used[out.value] = 1;
  std::vector<uint8_t> dead(segment.ops.size(), 1);
  auto useCounts = [&](ValueId value) {
    if (segment.values[value].counts != kNone)
      used[segment.values[value].counts] = 1;
  };
  for (const Segment::Boundary &in : segment.ins)
    useCounts(in.value);
  for (size_t i = segment.ops.size(); i-- > 0;) {
    const Op &op = segment.ops[i];
    bool needed = !mayGo(op);
    for (ValueId result : op.results)
      needed |= used[result] != 0;
    if (!needed)
      continue;
    dead[i] = 0;
    std::for_each(op.results.begin(), op.results.end(), useCounts);
    for (ValueId operand : op.operands)
      used[operand] = 1;
    for (const Tie &tie : op.ties)
      used[tie.value] = 1;
  }
  eraseOps(segment, dead);
}

void dropUnusedValues(Segment &segment) {
  std::vector<ValueId> index(segment.values.size(), kNone);
  auto mark = [&](ValueId value) {
    index[value] = 0;
    if (ValueId counts = segment.values[value].counts; counts != kNone)
      index[counts] = 0;
  };
  for (const Op &op : segment.ops) {
    std::for_each(op.operands.begin(), op.operands.end(), mark);
    std::for_each(op.results.begin(), op.results.end(), mark);
    for (const Tie &tie : op.ties)
      mark(tie.value);
  }
  for (const Segment::Boundary &in : segment.ins)
    mark(in.value);
  for (const Segment::Boundary &out : segment.outs)
    mark(out.value);
  ValueId kept = 0;
  for (size_t v = 0; v < segment.values.size(); ++v) {
    if (index[v] == kNone)
      continue;
    if (kept != v)
      segment.values[kept] = std::move(segment.values[v]);
    index[v] = kept++;
  }
  if (kept == segment.values.size())
    return; // all values are used
  segment.values.resize(kept);
  renameValues(segment, index);
}

void renameValues(Segment &segment, const std::vector<ValueId> &index) {
  auto rename = [&](ValueId &value) { value = index[value]; };
  for (Value &value : segment.values)
    if (value.counts != kNone)
      rename(value.counts);
  for (Op &op : segment.ops) {
    std::for_each(op.operands.begin(), op.operands.end(), rename);
    std::for_each(op.results.begin(), op.results.end(), rename);
    for (Tie &tie : op.ties)
      rename(tie.value);
  }
  for (Segment::Boundary &in : segment.ins)
    rename(in.value);
  for (Segment::Boundary &out : segment.outs)
    rename(out.value);
}

} // namespace shardc::plan
