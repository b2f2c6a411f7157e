// Microbatches that do the same as those before them: of a long loop, few turns are followed. If
// one leaves what the turn before left, each for later microbatches, then so does each turn behind
// it: it begins in the same state and, since this holds for all roles, is given the same by others.
#include <algorithm>

#include "runtime/plan/Variants.h"
#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
namespace {

void advance(State &state, int64_t by) {
  if (state.microbatch >= 0)
    state.microbatch += by;
  for (Contribution &each : state.sum) // which grows at its end
    each.last += by;
}

/// The loop of a step with the most turns; null if none has two.
const ProgramNode *longestLoop(const std::vector<ProgramNode> &nodes) {
  const ProgramNode *longest = nullptr;
  for (const ProgramNode &node : nodes)
    if (node.kind == ProgramNode::Loop && (!longest || node.count > longest->count))
      longest = &node;
  return longest;
}

/// Microbatches from a turn to the next; 0 if that is not the same for all of its runs.
int64_t stepOf(const ProgramNode &loop) {
  int64_t step = 0;
  for (const ProgramNode &run : loop.children) {
    if (run.kind != ProgramNode::Run || !run.microbatch ||
        (step != 0 && run.microbatch->coef != step))
      return 0;
    step = run.microbatch->coef;
  }
  return step;
}

const std::vector<ProgramNode> *stepsOf(const Role &role) {
  for (const ProgramNode &node : role.program)
    if (node.kind == ProgramNode::Steps)
      return &node.children;
  return nullptr;
}

bool namesMicrobatches(const Role &role) {
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops) {
      bool isNamed = op.pred.kind == Pred::Kind::Within;
      for (const Tie &tie : op.ties)
        isNamed |= tie.pred.kind == Pred::Kind::Within;
      if (isNamed)
        return true;
    }
  return false;
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
    next = Value::of(std::move(block));
  }
  if (value.kind == Value::Step) {
    StepState step = *value.step;
    for (bool isEval : {false, true})
      for (auto &[first, last] : step.sums(isEval).microbatches)
        last += by;
    next = Value::of(std::move(step));
  }
  return next;
}

/// How many microbatches all roles can leave out: turns of the longest loop of each, whose rings of
/// buffers are used all around before.
void Walk::findTurns() {
  if (turns_ == Turns::All || plan_.roles.size() < 2)
    return;
  int64_t most = INT64_MAX, slots = 1;
  for (const Role &role : plan_.roles)
    for (const Cell &cell : role.cells)
      slots = std::max<int64_t>(slots, cell.slots);
  for (const Role &role : plan_.roles) {
    const std::vector<ProgramNode> *steps = stepsOf(role);
    const ProgramNode *loop = steps ? longestLoop(*steps) : nullptr;
    if (!loop || stepOf(*loop) != 1 || namesMicrobatches(role))
      return;
    most = std::min(most, loop->count - slots - 3);
  }
  skipped_ = std::max<int64_t>(most, 0);
}

/// The nodes of a step or before it, without the turns that are left out.
void Walk::addStep(RoleWalk &walk, const std::vector<ProgramNode> &nodes) {
  const ProgramNode *longest = skipped_ > 0 ? longestLoop(nodes) : nullptr;
  std::vector<int64_t> named = namedRuns(*walk.role, nodes);
  int64_t left = 0; // microbatches that were left out before
  for (int64_t &count : named)
    count -= longest && count > skipped_ ? skipped_ : 0;
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Loop && &node == longest) {
      ProgramNode few = node;
      few.count -= skipped_;
      size_t begin = walk.runs.size();
      addLoop(walk, few, named, left);
      size_t turn = (walk.runs.size() - begin) / static_cast<size_t>(few.count);
      walk.runs.back().turn = Run::Turn::Last;
      walk.runs[walk.runs.size() - 1 - turn].turn = Run::Turn::Before;
      left = skipped_;
    } else if (node.kind == ProgramNode::Loop || node.kind == ProgramNode::Run) {
      addLoop(walk, node, named, left);
    }
  }
}

void Walk::addLoop(RoleWalk &walk, const ProgramNode &loop, const std::vector<int64_t> &named,
                   int64_t &left) {
  forEachRun(std::vector<ProgramNode>{loop}, [&](const ProgramNode &run, int64_t turn) {
    if (run.microbatch)
      walk.runs.push_back(
          {run.segment, run.microbatch->at(turn) - left, std::max<int64_t>(named[run.segment], 1)});
    else
      for (int64_t k = 0; k < run.count; ++k)
        walk.runs.push_back({run.segment, k, run.count, true});
    return true;
  });
}

/// Whether the last turn that is followed leaves what the one before it left, a microbatch later.
bool Walk::isSteadyTurn(RoleWalk &walk) {
  const Run &run = walk.run();
  if (run.turn == Run::Turn::Before)
    walk.before = walk.cells;
  if (run.turn != Run::Turn::Last)
    return true;
  for (size_t c = 0; c < walk.cells.size(); ++c) {
    const Values &now = walk.cells[c], &before = walk.before[c];
    for (size_t slot = 0; slot < now.size(); ++slot)
      if (!(advanced(before[slot], 1) == now[(slot + 1) % now.size()]))
        return false;
  }
  return true;
}

/// Of a run of all microbatches: if one leaves what the one before left, but for the microbatch, so
/// do all behind it that execute alike. Only of a plan with one role, which waits for no other.
bool Walk::skipLikeRuns(RoleWalk &walk) {
  const Run &run = walk.run();
  bool isRegular =
      run.isRepeated && roles_.size() == 1 && run.count > 4 && !namesMicrobatches(*walk.role) &&
      std::ranges::all_of(walk.cells, [](const Values &cell) { return cell.size() == 1; });
  if (!isRegular || run.microbatch == 0 || run.microbatch >= run.count - 2)
    return false;
  bool isLike = !walk.before.empty();
  for (size_t c = 0; isLike && c < walk.cells.size(); ++c)
    isLike = advanced(walk.before[c][0], 1) == walk.cells[c][0];
  if (!isLike) {
    walk.before = walk.cells;
    return false;
  }
  int64_t left = run.count - 2 - run.microbatch;
  for (Values &cell : walk.cells)
    cell[0] = advanced(cell[0], left);
  walk.before.clear();
  walk.at += static_cast<size_t>(left + 1);
  return true;
}

} // namespace shardc::plan::spec
