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
  case Term::Loaded:
  case Term::Kept:
    break;
  default:
    for (TermId &operand : next.operands)
      operand = operand == kNoTerm ? kNoTerm : nextTerm(operand);
    made = term == kNoTerm ? kNoTerm : terms_.of(std::move(next));
  }
  nextTerms_.emplace(term, made);
  return made;
}

bool Walk::isNext(const State &now, const State &then) {
  auto isNextOf = [&](const Contribution &a, const Contribution &b) {
    return a.term == nextTerm(b.term) && a.first == b.first + kStep && a.last == b.last + kStep;
  };
  return now.microbatch == then.microbatch + (then.microbatch < 0 ? 0 : kStep) &&
         now.term == nextTerm(then.term) && std::ranges::equal(now.sum, then.sum, isNextOf) &&
         now->cover.of.empty() && now.isPlacedAs(then);
}

bool Walk::isNext(const Maxima &now, const Maxima &then) {
  bool isOfStep = then.kind == Maxima::History || then.kind == Maxima::Expected;
  if (now.kind != then.kind || now.step != then.step + (isOfStep ? 1 : 0) ||
      now.entries.size() != then.entries.size())
    return false;
  bool isOfWeights = then.kind == Maxima::Weights || then.kind == Maxima::Scales;
  return std::ranges::equal(now.entries, then.entries, [&](const auto &a, const auto &b) {
    return isOfWeights && a.first == b.first && a.second.count == b.second.count &&
           a.second.first == b.second.first && a.second.last == b.second.last &&
           isNext(a.second.of, b.second.of);
  });
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

bool Walk::isNext(const Value &now, const Value &then) {
  bool isUnused = then.isBlock() && !begunBlocks_[then.block.get()];
  if (then.kind == Value::Unknown || isUnused)
    return true;
  if (now.kind != then.kind)
    return false;
  switch (then.kind) {
  case Value::Unfollowed:
  case Value::Host:
    return true;
  case Value::One:
    return isNext(now.state, then.state);
  case Value::Block:
    return now.block->block == then.block->block && now.block->axes == then.block->axes &&
           std::ranges::equal(now.block->params, then.block->params,
                              [&](const State &a, const State &b) { return isNext(a, b); });
  case Value::Step: // any op that uses the sums of another step is refused
    return now.step->training.finished == 0 && then.step->training.finished == -1;
  case Value::Largest:
    return isNext(*now.maxima, *then.maxima);
  default:
    return false;
  }
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
