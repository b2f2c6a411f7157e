// Proves that all further steps repeat the first one. What a step computes depends only on its
// cells. The model's terms of the second step equal those of the first, with new parameters and
// moments for the old ones. So if the second step finds the cells of the first, apart from this
// replacement, all further steps repeat it. A cell that was unknown to the first step, or that it
// did not use, may hold anything.
#include <algorithm>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

/// The term that replaces this one in the next step.
TermId Walk::nextTerm(TermId term) {
  if (auto found = nextTerms_.find(term); found != nextTerms_.end())
    return found->second;
  Term next = terms_[term];
  TermId made = term;
  switch (next.kind) {
  case Term::Parameter:
  case Term::FirstMoment:
  case Term::SecondMoment:
    made = parameterOfGoal(next.kind, next.number, 1);
    break;
  case Term::Kept:
    if (next.number == static_cast<int64_t>(CellKind::ExpertBias))
      made = biasAfter({}, 1).term;
    break;
  case Term::Loaded:
    break;
  default:
    for (TermId &operand : next.operands)
      operand = operand == kNoTerm ? kNoTerm : nextTerm(operand);
    next.sortSummands(); // their numbers have changed
    made = term == kNoTerm ? kNoTerm : terms_.of(std::move(next));
  }
  nextTerms_.emplace(term, made);
  return made;
}

/// The value that corresponds to this one in the next step.
State Walk::nextState(State then) {
  then.term = nextTerm(then.term);
  then.microbatch += then.microbatch < 0 ? 0 : kStep;
  for (Contribution &each : then.sum)
    each = {nextTerm(each.term), each.first + kStep, each.last + kStep};
  return then;
}

void Walk::beginSteps(RoleWalk &walk) {
  walk.begun = walk.cells;
  for (const Values &slots : walk.cells)
    for (const Value &value : slots)
      if (value.isBlock())
        begunBlocks_.emplace(value.block.get(), false);
}

/// Records that an op reads a block that a cell held at the start of the first step.
void Walk::noteUse(const Value &value) {
  if (auto found = value.isBlock() ? begunBlocks_.find(value.block.get()) : begunBlocks_.end();
      found != begunBlocks_.end())
    found->second = true;
}

/// Whether a cell has `now` at the start of the second step if it had `then` before the first one.
bool Walk::isNext(const Value &now, Value then) {
  bool isUnused = then.isBlock() && !begunBlocks_[then.block.get()];
  if (then.kind == Value::Unknown || isUnused)
    return true;
  if (then.kind == Value::Step) // any op that uses the sums of another step is refused
    return now.kind == then.kind && now.step->training.finished == 0 &&
           then.step->training.finished == -1;
  if (then.isOne() && terms_.isZero(then.state.term) && now.kind == Value::Largest)
    return *now.maxima == Maxima(); // zeros are amaxes of nothing
  if (then.isOne())
    then.state = nextState(then.state);
  if (then.isBlock()) {
    BlockState block = *then.block;
    for (State &param : block.params)
      param = nextState(std::move(param));
    then = Value(std::move(block));
  }
  if (then.kind == Value::Largest) {
    Maxima maxima = *then.maxima;
    bool isOfWeights = maxima.kind == Maxima::Weights || maxima.kind == Maxima::Scales;
    if (!isOfWeights && !maxima.entries.empty())
      return false;
    maxima.step += maxima.kind == Maxima::History || maxima.kind == Maxima::Expected ? 1 : 0;
    for (auto &[number, entry] : maxima.entries)
      entry.of = nextState(std::move(entry.of));
    then = Value(std::move(maxima));
  }
  return now == then;
}

/// Whether all roles are at the start of the second step, with the cells of the first one, and
/// nothing comes after their steps.
bool Walk::isInduction() {
  auto isEmpty = [](const auto &queue) { return queue.second.empty(); };
  if (!std::ranges::all_of(queues_, isEmpty) ||
      !std::ranges::all_of(roles_, &RoleWalk::isAtSecondStep) ||
      !std::ranges::all_of(roles_, &RoleWalk::endsWithStep))
    return false;
  for (const RoleWalk &walk : roles_)
    for (size_t c = 0; c < walk.cells.size(); ++c)
      for (size_t slot = 0; slot < walk.cells[c].size(); ++slot)
        if (!isNext(walk.cells[c][slot], walk.begun[c][slot]))
          return false;
  return true;
}

} // namespace shardc::plan::spec
