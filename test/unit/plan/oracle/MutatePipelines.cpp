#include "MutatePipelines.h"

#include "runtime/plan/Text.h"

namespace shardc::plan::oracle {
namespace {

/// Collects runs that name their microbatch, and loops.
void collectNodes(std::vector<ProgramNode> &nodes, std::vector<ProgramNode *> &named,
                  std::vector<ProgramNode *> &loops) {
  for (ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Run && node.microbatch)
      named.push_back(&node);
    if (node.kind == ProgramNode::Loop)
      loops.push_back(&node);
    collectNodes(node.children, named, loops);
  }
}

} // namespace

std::string PipelineMutator::doChangeTransfer() {
  std::vector<uint32_t> transfers =
      opsWhere([](const Op &o) { return o.kind == OpKind::Send || o.kind == OpKind::Recv; });
  if (transfers.empty())
    return {};
  uint32_t i = pick(transfers);
  switch (below(4)) {
  case 0:
    return dropTransfer(i);
  case 1:
    return moveTransfer(i);
  case 2:
    return delayTransfer(i, transfers);
  default:
    return changeWhen(i);
  }
}

/// Removes a send, or a receive whose result is only stored in cells.
std::string PipelineMutator::dropTransfer(uint32_t i) {
  for (ValueId result : op(i).results) {
    for (const Op &each : segment_->ops) {
      if (std::ranges::find(each.operands, result) != each.operands.end() ||
          std::ranges::find(each.ties, result, &Tie::value) != each.ties.end())
        return {};
    }
    std::erase_if(segment_->outs, [&](const auto &out) { return out.value == result; });
  }
  std::string what = at(i, fmt::format("{} is left out", opInfo(op(i)).name));
  removeOp(i);
  return what;
}

/// Moves a transfer to the channel of another pair, or of the reverse direction.
std::string PipelineMutator::moveTransfer(uint32_t i) {
  std::vector<ChannelId> others;
  for (size_t c = 0; c < plan_.channels.size(); ++c)
    if (plan_.channels[c].isPair() && static_cast<ChannelId>(c) != op(i).channel)
      others.push_back(static_cast<ChannelId>(c));
  if (others.empty())
    return {};
  op(i).channel = pick(others);
  op(i).group = plan_.channels[static_cast<size_t>(op(i).channel)].group;
  return at(i,
            fmt::format("on channel {}", plan_.channels[static_cast<size_t>(op(i).channel)].name));
}

/// Adds a wait for another transfer. The other end may wait in the reverse order.
std::string PipelineMutator::delayTransfer(uint32_t i, const std::vector<uint32_t> &transfers) {
  uint32_t first = std::min(i, transfers[below(transfers.size())]);
  uint32_t second = std::max(i, transfers[below(transfers.size())]);
  if (first >= second || op(first).stream == op(second).stream ||
      std::ranges::find(op(second).waits, first) != op(second).waits.end())
    return {};
  op(second).waits.push_back(first);
  std::ranges::sort(op(second).waits);
  return at(second, fmt::format("waits for the transfer {}", first));
}

std::string PipelineMutator::changeWhen(uint32_t i) {
  if (!segment_->body)
    return {};
  Pred &pred = op(i).pred;
  int64_t step = below(2) == 0 ? 1 : -1;
  bool isPeriodic = pred.period > 0;
  if (pred.kind != Pred::Kind::Within)
    pred = Pred::within(0, static_cast<int64_t>(below(3)));
  else if (size_t which = below(isPeriodic ? 4 : 2); which == 0)
    pred.begin += step;
  else if (which == 1)
    pred.last += step;
  else if (which == 2)
    pred.period += step;
  else
    pred.until += step * pred.period;
  bool isPeriod =
      pred.period > pred.last - pred.begin + 1 && pred.until >= pred.begin + pred.period;
  if (pred.begin < 0 || pred.last < pred.begin || (isPeriodic && !isPeriod))
    pred = Pred::within(1, 1);
  return at(i, "executes if " + plan::toString(pred));
}

/// Changes the slots of a ring, also in the places of its values.
void PipelineMutator::setSlots(Cell &ring, int32_t slots) {
  int64_t begin = ring.place.offset, end = begin + ring.bytes();
  auto follow = [&](Place &place) {
    if (place.placed && place.slots > 1 && place.arena == ring.arena && place.offset >= begin &&
        place.offset < end)
      place.slots = slots;
  };
  ring.slots = slots;
  follow(ring.place);
  for (Segment &each : role_->segments)
    for (Value &value : each.values)
      follow(value.place);
}

std::string PipelineMutator::doChangeSlots() {
  std::vector<Cell *> rings;
  for (Cell &cell : role_->cells)
    if (cell.isRing())
      rings.push_back(&cell);
  if (rings.empty() || below(2) == 0)
    return changeShift();
  Cell &ring = *pick(rings);
  if (ring.slots < 3) // a ring has at least two slots
    return {};
  setSlots(ring, ring.slots - 1);
  return fmt::format("role {}: ring @{} has {} slots", role_->name, ring.name, ring.slots);
}

/// Makes a segment read or store a cell's content of another microbatch.
std::string PipelineMutator::changeShift() {
  std::vector<Segment::Boundary *> boundaries;
  for (std::vector<Segment::Boundary> *each : {&segment_->ins, &segment_->outs})
    for (Segment::Boundary &boundary : *each)
      if (role_->cells[boundary.cell].isRing() || boundary.shift != 0)
        boundaries.push_back(&boundary);
  if (boundaries.empty())
    return {};
  Segment::Boundary &boundary = *pick(boundaries);
  boundary.shift += below(2) == 0 ? 1 : -1;
  if (role_->cells[boundary.cell].isRing())
    value(boundary.value).place.shift = boundary.shift;
  return fmt::format("role {}, segment {}: @{} is {} microbatches on", role_->name, segment_->name,
                     role_->cells[boundary.cell].name, boundary.shift);
}

std::string PipelineMutator::doChangeSchedule() {
  std::vector<ProgramNode *> named, loops;
  collectNodes(role_->program, named, loops);
  if (named.empty())
    return {};
  int64_t step = below(2) == 0 ? 1 : -1;
  if (size_t which = below(4); which == 0 && !loops.empty()) {
    ProgramNode &loop = *pick(loops);
    loop.count = std::max<int64_t>(loop.count + step, 1);
    return fmt::format("role {}: a loop of {} iterations", role_->name, loop.count);
  } else if (which == 1 && !loops.empty()) {
    std::vector<ProgramNode> &children = pick(loops)->children;
    if (children.size() < 2)
      return {};
    std::swap(children[0], children[1]);
    return fmt::format("role {}: two runs of a loop change places", role_->name);
  } else if (which == 2 && named.size() > 1) {
    ProgramNode &a = *pick(named), &b = *pick(named);
    if (&a == &b)
      return {};
    std::swap(a.microbatch, b.microbatch);
    return fmt::format("role {}: two runs change microbatches", role_->name);
  }
  ProgramNode &run = *pick(named);
  run.microbatch->base += step;
  return fmt::format("role {}: segment {} runs for microbatch {}*i + {}", role_->name,
                     role_->segments[run.segment].name, run.microbatch->coef, run.microbatch->base);
}

} // namespace shardc::plan::oracle
