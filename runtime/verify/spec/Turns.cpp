// Skips microbatches that repeat earlier ones. A body's result depends on the microbatch only
// through its number. If its inputs equal earlier inputs apart from later microbatches, so do its
// outputs. So a body with the same predicates is not followed again if its cells and the values
// from other roles are of this kind, and its sums over microbatches have grown by the current one.
#include <algorithm>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
namespace {

void advance(State &state, int64_t by) {
  bool isOfOne = state.microbatch >= 0;
  state.microbatch += isOfOne ? by : 0;
  // A state of several microbatches keeps its first one and extends to later ones.
  for (Contribution &each : state.sum)
    each.first += isOfOne ? by : 0, each.last += by;
}

bool isLater(const State &now, const State &then, int64_t by) {
  int64_t moved = then.microbatch < 0 ? 0 : by;
  auto isSame = [by, moved](const Contribution &a, const Contribution &b) {
    return a.term == b.term && a.first == b.first + moved && a.last == b.last + by;
  };
  return now.microbatch == then.microbatch + moved &&
         std::ranges::equal(now.sum, then.sum, isSame) && now.term == then.term &&
         now.isPlacedAs(then);
}

/// The sums over several microbatches that advanced() extends.
std::vector<Contribution> sumsOf(const Value &value) {
  std::vector<Contribution> sums;
  auto add = [&](const State &state) {
    if (state.microbatch < 0)
      sums.insert(sums.end(), state.sum.begin(), state.sum.end());
  };
  add(value.state);
  if (value.isBlock())
    std::ranges::for_each(value.block->params, add);
  if (value.kind == Value::Step)
    for (bool isEval : {false, true})
      for (const LossSums::Of &of : value.step->sums(isEval).losses)
        sums.push_back({of.loss.term, of.first, of.last});
  if (value.kind == Value::Largest)
    for (const auto &[slot, entry] : value.maxima->entries)
      sums.insert(sums.end(), entry.seen.begin(), entry.seen.end());
  return sums;
}

/// Whether each sum has what it had before, and may have this microbatch too, right after that. A
/// sum with gaps does not grow alike in other microbatches, which may fill a gap.
bool growsAlike(const Value &before, const Value &after, int64_t microbatch) {
  std::vector<Contribution> had = sumsOf(before), has = sumsOf(after);
  auto goesOn = [&](const Contribution &a, Contribution b) {
    b.last += a.last == microbatch && b.last == microbatch - 1 ? 1 : 0;
    return a == b;
  };
  auto areApart = [](const Contribution &a, const Contribution &b) {
    return a.term == b.term && a.first != b.first;
  };
  return std::ranges::equal(has, had, goesOn) &&
         std::ranges::adjacent_find(has, areApart) == has.end();
}

} // namespace

Value advanced(const Value &value, int64_t by) {
  Value next = value;
  if (value.isOne())
    advance(next.state, by);
  if (value.isBlock()) {
    BlockState block = *value.block;
    for (State &param : block.params)
      advance(param, by);
    next = Value(std::move(block));
  }
  if (value.kind == Value::Step) {
    StepState step = *value.step;
    for (bool isEval : {false, true})
      for (LossSums::Of &of : step.sums(isEval).losses)
        of.last += by;
    next = Value(std::move(step));
  }
  if (value.kind == Value::Largest) {
    Maxima maxima = *value.maxima;
    for (auto &[slot, entry] : maxima.entries)
      if (!entry.seen.empty())
        entry.seen.back().last += by;
    next = Value(std::move(maxima));
  }
  return next;
}

bool isLater(const Value &now, const Value &then, int64_t by) {
  if (now.kind != then.kind)
    return false;
  if (now.isOne())
    return isLater(now.state, then.state, by);
  if (!now.isBlock())
    return advanced(then, by) == now;
  return isPartOf(now, *then.block) &&
         std::ranges::equal(now.block->params, then.block->params,
                            [by](const State &a, const State &b) { return isLater(a, b, by); });
}

void Walk::addBodies(RoleWalk &walk, const std::vector<ProgramNode> &nodes,
                     const std::vector<int64_t> &named) {
  forEachRun(nodes, [&](const ProgramNode &run, int64_t turn) {
    if (run.microbatch)
      walk.runs.push_back(
          {run.segment, run.microbatch->at(turn), std::max<int64_t>(named[run.segment], 1)});
    else
      for (int64_t k = 0; k < run.count; ++k)
        walk.runs.push_back({run.segment, k, run.count});
    return true;
  });
}

Walk::Kept Walk::keyOf(const RoleWalk &walk) {
  const Segment &segment = walk.segment();
  auto table = variants_.find(&segment);
  if (table == variants_.end())
    table = variants_.emplace(&segment, VariantTable(segment)).first;
  return {&segment, table->second.of(walk.run().microbatch, walk.run().count)};
}

/// The earlier body that the current one would repeat, judging by its cells; null if there is none.
const Body *Walk::findBody(RoleWalk &walk) {
  if (!skips_ || !walk.segment().body || walk.run().isStepBegin)
    return nullptr;
  auto found = bodies_.find(keyOf(walk));
  if (found == bodies_.end())
    return nullptr;
  const Body &body = found->second;
  const std::vector<Segment::Boundary> &ins = walk.segment().ins;
  for (size_t i = 0; i < ins.size(); ++i) {
    const Value &in = *slot(walk, ins[i].cell, ins[i].shift);
    if (!isLater(in, body.ins[i], microbatch(walk) - body.microbatch))
      return nullptr;
    if (in.block != body.ins[i].block)
      noteUse(in);
  }
  return &body;
}

/// Repeats an earlier body in place of the current one, with the same transfers in the same order.
/// Returns false if other roles send other values.
bool Walk::executeAgain(RoleWalk &walk, bool &hasMoved) {
  const Body &then = *walk.again;
  int64_t by = microbatch(walk) - then.microbatch;
  for (size_t at = walk.transfers.size(); at < then.transfers.size(); ++at) {
    const auto &[key, isSend, value] = then.transfers[at];
    std::deque<Value> &queue = queues_[key];
    if (!isSend && queue.empty())
      return true;
    if (!isSend && !isLater(queue.front(), value, by))
      return false;
    walk.transfers.push_back({key, isSend, isSend ? advanced(value, by) : queue.front()});
    if (isSend)
      queue.push_back(walk.transfers.back().value);
    else
      queue.pop_front();
    hasMoved = true;
  }
  const std::vector<Segment::Boundary> &outs = walk.segment().outs;
  for (size_t i = 0; i < outs.size(); ++i)
    *slot(walk, outs[i].cell, outs[i].shift) = advanced(then.outs[i], by);
  walk.again = nullptr;
  hasMoved = true;
  return endRun(walk);
}

/// Records what the current body has read and computed.
void Walk::keepBody(RoleWalk &walk) {
  const Segment &segment = walk.segment();
  if (!segment.body || walk.hasMet)
    return;
  Body body = {microbatch(walk), std::move(walk.ins), {}, std::move(walk.transfers)};
  for (const Segment::Boundary &out : segment.outs) {
    body.outs.push_back(walk.values[out.value]);
    auto in = std::ranges::find_if(segment.ins, [&](const Segment::Boundary &each) {
      return each.cell == out.cell && each.shift == out.shift;
    });
    Value before =
        in == segment.ins.end() ? Value() : body.ins[static_cast<size_t>(in - segment.ins.begin())];
    if (!growsAlike(before, body.outs.back(), body.microbatch))
      return;
  }
  for (const Transfer &transfer : body.transfers)
    if (transfer.isSend && !sumsOf(transfer.value).empty())
      return;
  bodies_[keyOf(walk)] = std::move(body);
}

} // namespace shardc::plan::spec
