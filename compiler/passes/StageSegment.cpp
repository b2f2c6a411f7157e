// Copies the ops of a stage into a segment. Adds receives for values of other stages, and sends for
// values that other stages read.
#include "compiler/passes/StageSegment.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace shardc::passes {

/// A channel has the name of the earlier stage. If the later one is not the next stage, it has
/// both.
plan::Op SegmentWriter::linkOp(plan::OpKind kind, int32_t from, int32_t to, bool isForward) {
  using enum plan::StreamKind;
  const plan::StreamKind sends = isForward ? SendForward : SendBackward,
                         receives = isForward ? RecvForward : RecvBackward;
  const int32_t earlier = isForward ? from : to, later = isForward ? to : from;
  std::string name = fmt::format("{}.{}", isForward ? "fwd" : "bwd", earlier);
  if (later != (earlier + 1) % plan_.job.model.pipelineModelParallelSize)
    name += fmt::format(".{}", later);
  bool isRound = (from < to) != isForward;
  plan::Op op = plan::makeOp(kind, {});
  plan::setChannel(plan_, op,
                   plan::pairChannelOf(plan_, plan::groupOfKind(plan_, plan::GroupKind::Stages),
                                       {std::min(from, to), std::max(from, to)},
                                       isRound ? receives : sends, name));
  op.stream = plan::streamOf(plan_, kind == plan::OpKind::Send ? sends : receives);
  op.phase = phase();
  return op;
}

void SegmentWriter::addOps() {
  for (size_t i = 0; i < body_.ops.size(); ++i)
    if (hasOp(i)) {
      plan::Op op = cut_.opFor(i, part_.chunk);
      op.pred = part_.runs.like(op.pred);
      for (plan::Tie &tie : op.ties)
        tie.pred = part_.runs.like(tie.pred);
      if (isOfEveryPass(i) && part_.kind != PassKind::Both)
        op.phase = phase();
      addOp(std::move(op));
    }
  if (part_.kind != PassKind::Both)
    moveGradients();
}

plan::ValueId SegmentWriter::newValue(plan::ValueId like, const char *suffix) {
  const plan::Value &value = body_.values[like];
  std::string name = value.name + suffix;
  if (int times = ++uses_[name]; times > 1)
    name += fmt::format(".{}", times);
  return plan::addValue(segment_, std::move(name), value.type, value.purpose);
}

plan::ValueId SegmentWriter::receive(plan::ValueId value, const char *suffix, int32_t from,
                                     bool isForward, plan::Pred pred, plan::ValueId before) {
  plan::Op op = linkOp(plan::OpKind::Recv, from, stage_, isForward);
  op.pred = pred;
  op.loc = body_.ops[body_.values[value].def].loc;
  plan::ValueId result = newValue(value, suffix);
  op.results = {result};
  if (pred != plan::Pred::Always)
    op.ties.push_back({plan::Tie::Else, 0, before});
  segment_.ops.push_back(std::move(op));
  return result;
}

void SegmentWriter::copy(plan::ValueId received, plan::ValueId value) {
  plan::ValueId known = value < body_.values.size() ? value : received;
  plan::Op op =
      plan::makeOp(plan::OpKind::Cast, {received}, -1, body_.ops[body_.values[known].def].loc);
  op.phase = phase();
  op.results = {value};
  use(received);
  use(value);
  segment_.ops.push_back(std::move(op));
}

void SegmentWriter::send(const std::vector<plan::ValueId> &values, int32_t to, bool isForward) {
  for (plan::ValueId value : values) {
    use(value);
    plan::Op op = linkOp(plan::OpKind::Send, stage_, to, isForward);
    op.operands = {value};
    op.loc = body_.ops[body_.values[value].def].loc;
    segment_.ops.push_back(std::move(op));
  }
}

std::vector<uint8_t> madeValues(const plan::Segment &segment) {
  std::vector<uint8_t> isMade(segment.values.size());
  for (const plan::Op &op : segment.ops)
    for (plan::ValueId result : op.results)
      isMade[result] = 1;
  return isMade;
}

plan::ValueId StageSegment::use(const plan::Segment &body, plan::ValueId value) {
  plan::ValueId &local = localOf[value];
  if (local != plan::kNone)
    return local;
  local = static_cast<plan::ValueId>(segment.values.size());
  segment.values.push_back(body.values[value]);
  bodyOf.push_back(value);
  if (plan::ValueId counts = body.values[value].counts; counts != plan::kNone)
    segment.values[localOf[value]].counts = use(body, counts);
  return localOf[value];
}

void StageSegment::orderAsBody() {
  std::vector<plan::ValueId> order(bodyOf.size()), index(bodyOf.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [this](plan::ValueId local) { return bodyOf[local]; });
  std::vector<plan::Value> values;
  std::vector<plan::ValueId> bodies;
  for (plan::ValueId local : order) {
    index[local] = static_cast<plan::ValueId>(values.size());
    values.push_back(std::move(segment.values[local]));
    bodies.push_back(bodyOf[local]);
  }
  segment.values = std::move(values);
  bodyOf = std::move(bodies);
  plan::renameValues(segment, index);
}

std::vector<uint8_t> readValues(const plan::Segment &segment) {
  std::vector<uint8_t> isRead(segment.values.size());
  for (const plan::Segment::Boundary &out : segment.outs)
    isRead[out.value] = 1;
  for (const plan::Op &op : segment.ops) {
    for (plan::ValueId operand : op.operands)
      isRead[operand] = 1;
    for (const plan::Tie &tie : op.ties)
      isRead[tie.value] = 1;
  }
  return isRead;
}

namespace {

/// Removes ops without users, including unused loads and exchanges within the stage.
void removeUnread(plan::Segment &segment) {
  plan::removeDeadOps(segment, [](const plan::Op &op) {
    const plan::OpInfo &info = plan::opInfo(op);
    bool isShared = info.sum == plan::SumRole::Combines && !plan::isPointToPoint(op);
    return info.traits == plan::OpTraits::Pure || info.traits == plan::OpTraits::Alias ||
           info.sum == plan::SumRole::Loads || isShared;
  });
}

} // namespace

StageSegment SegmentWriter::take(plan::SegmentKind kind, std::string name) {
  segment_.kind = kind;
  segment_.name = std::move(name);
  addOuts();
  StageSegment written = withoutUnused();
  plan::renumber(written.segment);
  removeUnread(written.segment);
  std::vector<uint8_t> isRead = readValues(written.segment);
  for (plan::Segment::Boundary in : body_.ins)
    if (plan::ValueId local = written.localOf[in.value]; local != plan::kNone && isRead[local]) {
      in.value = local;
      written.segment.ins.push_back(in);
    }
  return written;
}

StageSegment SegmentWriter::withoutUnused() {
  size_t numBody = body_.values.size();
  std::ranges::sort(used_);
  for (size_t value = numBody; value < segment_.values.size(); ++value)
    used_.push_back(static_cast<plan::ValueId>(value));
  std::vector<plan::Value> all = std::move(segment_.values);
  std::vector<plan::ValueId> index(all.size(), plan::kNone);
  StageSegment written;
  for (plan::ValueId value : used_) {
    index[value] = static_cast<plan::ValueId>(written.bodyOf.size());
    written.bodyOf.push_back(value < numBody ? value : plan::kNone);
    written.segment.values.push_back(std::exchange(all[value], {}));
  }
  std::vector<plan::Value> values = std::move(written.segment.values);
  written.segment = std::move(segment_);
  written.segment.values = std::move(values);
  plan::renameValues(written.segment, index);
  all.resize(numBody);
  storage_ = std::move(all);
  index.resize(numBody);
  written.localOf = std::move(index);
  return written;
}

bool SegmentWriter::hasOp(size_t i) {
  const plan::Op &op = body_.ops[i];
  int32_t chunk = cut_.stageOfOp(i);
  if (chunk != part_.chunk && chunk != kEveryStage && !cut_.passesState(i))
    return false; // most ops of the body
  if (!isOfPass(i) || chunk != part_.chunk)
    for (size_t r = 0; r < op.results.size(); ++r)
      if (plan::ValueId seen = cut_.amaxSeenBefore(op, r); seen != plan::kNone)
        state_[op.results[r]] = resolved(seen);
  if (isOfPass(i) && (chunk == part_.chunk || (chunk == kEveryStage && isHere(op))))
    return true;
  // This segment does not run the op that begins, updates or ends the step state, so it uses the
  // state that an earlier pass stored.
  if (isOfState(op) && cut_.stageOf(op.results[0]) == kEveryStage)
    state_[op.results[0]] = resolved(op.operands[0]);
  return false;
}

/// Whether the op is a view of a cell that every stage has. Each pass executes such an op itself.
bool SegmentWriter::isOfEveryPass(size_t i) const {
  return cut_.stageOfOp(i) == kEveryStage &&
         plan::opInfo(body_.ops[i]).traits == plan::OpTraits::Alias;
}

bool SegmentWriter::isHere(const plan::Op &op) const {
  using enum plan::SumRole;
  plan::SumRole sum = plan::opInfo(op).sum;
  bool isExchange = sum == Combines && !isOfState(op) && op.phase != plan::Phase::Backward;
  if (sum == Loads || sum == BeginsStep || sum == BeginsEval || isExchange)
    return part_.isFirstHere;
  if (sum == PacksEval || sum == Combines || sum == FinishesEval)
    return part_.isLastHere;
  return true;
}

/// In segments that do not compute weight gradients, gradients of the loss are ordinary
/// activations. A segment for weight gradients first adds the parts that other segments of the
/// stage have made.
void SegmentWriter::moveGradients() {
  const bool makesWeights = makes(part_.kind, PassResult::Weights);
  for (const plan::Op &op : segment_.ops)
    for (plan::ValueId result : op.results)
      if (plan::Value &value = segment_.values[result];
          !makesWeights && value.purpose == plan::Purpose::Grads)
        value.purpose = plan::Purpose::Activations;
  if (!makesWeights)
    return;
  std::vector<plan::Op> moves;
  for (const plan::Segment::Boundary &out : body_.outs) {
    plan::ValueId made = gradientOf(out), adding = plan::kNone;
    for (; made != plan::kNone && isMadeHere(made); made = cut_.addedTo(made, part_.chunk))
      adding = made;
    if (made == plan::kNone)
      continue;
    use(made);
    segment_.values[made].purpose = plan::Purpose::Activations;
    plan::ValueId moved = plan::addValue(segment_, body_.values[made].name + ".all",
                                         body_.values[made].type, plan::Purpose::Grads);
    const plan::Op &by = body_.ops[body_.values[adding == plan::kNone ? made : adding].def];
    plan::Op op = plan::makeOp(plan::OpKind::Cast, {made}, by.unit, by.loc);
    op.phase = phase();
    op.results = {moved};
    moves.push_back(std::move(op));
    if (adding == plan::kNone)
      segment_.outs.push_back({moved, out.cell});
    for (plan::Op &each : segment_.ops) // what adds to `made` adds to its copy
      for (plan::Tie &tie : each.ties)
        if (tie.kind == plan::Tie::Acc && tie.value == made)
          tie.value = moved;
  }
  putFirst(std::move(moves));
}

/// Inserts each of these ops before the first gradient of its unit, or at the beginning if the unit
/// has no other gradient.
void SegmentWriter::putFirst(std::vector<plan::Op> moves) {
  std::vector<std::vector<plan::Op>> before(segment_.ops.size() + 1);
  auto makesGradient = [&](const plan::Op &op) {
    return std::ranges::any_of(op.results, [&](plan::ValueId result) {
      return segment_.values[result].purpose == plan::Purpose::Grads;
    });
  };
  for (plan::Op &move : moves) {
    auto at = std::ranges::find_if(segment_.ops, [&](const plan::Op &op) {
      return op.unit == move.unit && makesGradient(op);
    });
    before[at == segment_.ops.end() ? 0 : static_cast<size_t>(at - segment_.ops.begin())].push_back(
        std::move(move));
  }
  std::vector<plan::Op> ops;
  ops.reserve(segment_.ops.size() + moves.size());
  for (size_t i = 0; i < before.size(); ++i) {
    std::ranges::move(before[i], std::back_inserter(ops));
    if (i < segment_.ops.size())
      ops.push_back(std::move(segment_.ops[i]));
  }
  segment_.ops = std::move(ops);
}

plan::ValueId SegmentWriter::gradientOf(const plan::Segment::Boundary &out) const {
  bool isGradient = body_.values[out.value].purpose == plan::Purpose::Grads;
  return isGradient ? cut_.contribution(out.value, part_.chunk) : plan::kNone;
}

void SegmentWriter::addOp(plan::Op op) {
  auto read = [&](plan::ValueId &value) {
    value = resolved(value);
    use(value);
  };
  std::ranges::for_each(op.operands, read);
  for (plan::Tie &tie : op.ties)
    read(tie.value);
  for (plan::ValueId result : op.results)
    use(result);
  segment_.ops.push_back(std::move(op));
}

void SegmentWriter::addOuts() {
  std::vector<uint8_t> isMade = madeValues();
  for (plan::Segment::Boundary out : body_.outs) {
    plan::ValueId gradient = gradientOf(out);
    if (gradient != plan::kNone && !makes(part_.kind, PassResult::Weights))
      continue; // moved by putFirst()
    bool isGradient = body_.values[out.value].purpose == plan::Purpose::Grads;
    out.value = isGradient ? gradient : resolved(out.value);
    if (out.value != plan::kNone && isMade[out.value] != 0)
      segment_.outs.push_back(out);
  }
}

} // namespace shardc::passes
