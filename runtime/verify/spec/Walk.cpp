// Follows the programs of all roles and the ops of their segments, and compares two plans.
#include "runtime/verify/spec/Walk.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/plan/Text.h"

namespace shardc::plan::spec {
namespace {

/// The value of an attribute among these, or its default.
std::string valueOf(std::span<const Attr> attrs, AttrKey key) {
  const AttrInfo &info = attrInfo(key);
  auto at = std::ranges::find(attrs, key, &Attr::key);
  const auto whole = at == attrs.end() ? static_cast<int64_t>(info.defaultValue) : at->i;
  switch (info.type) {
  case AttrInfo::Bool:
    return whole != 0 ? "true" : "false";
  case AttrInfo::Int:
    return fmt::format("{}", whole);
  case AttrInfo::Enum:
    return std::string(enumeratorName(info, whole));
  case AttrInfo::Float:
    break;
  }
  std::array<char, 32> text{}; // the shortest that is the same number: 1e-04
  const double real = at == attrs.end() ? info.defaultValue : at->f;
  return {text.begin(), std::to_chars(text.begin(), text.end(), real).ptr};
}

/// The attributes in which two terms of an op differ: those of the first one with its values, and
/// the values of the second one.
std::pair<std::vector<std::string>, std::vector<std::string>> unlikeAttrs(const Term &found,
                                                                          const Term &needed) {
  std::pair<std::vector<std::string>, std::vector<std::string>> unlike;
  for (int k = 0; k < kAttrCount; ++k) {
    auto key = static_cast<AttrKey>(k);
    const std::string has = valueOf(found.attrs, key), needs = valueOf(needed.attrs, key);
    if (has == needs)
      continue;
    unlike.first.push_back(fmt::format("{} = {}", attrInfo(key).name, has));
    unlike.second.push_back(needs);
  }
  return unlike;
}

} // namespace

Walk::Walk(const Plan &plan, Terms &terms, const Goals &goals, bool isSpecification, bool skips)
    : plan_(plan), terms_(terms), goals_(goals), isSpecification_(isSpecification), skips_(skips),
      mesh_(plan), compute_(mesh_, terms), mover_(mesh_, allMoves()),
      stepState_(kept(CellKind::Step, {})), paramsOf_(plan.blocks.size()),
      dataAxes_(mesh_.axesOf(GroupKind::Data)) {
  for (const Param &param : plan.params) {
    auto at = goals.params.find(param.name);
    goalOf_.push_back(at == goals.params.end() ? -1 : at->second);
  }
  for (size_t p = 0; p < plan.params.size(); ++p)
    if (plan.params[p].block >= 0)
      paramsOf_[static_cast<size_t>(plan.params[p].block)].push_back(p);
  for (std::vector<size_t> &params : paramsOf_)
    std::ranges::sort(params, {}, [&](size_t p) { return plan.params[p].offset; });
}

Refused Walk::refuseAt(std::string why) {
  if (!difference_)
    difference_ = Finding{.rule = Rule::Specification, .message = std::move(why)};
  return {};
}

Refused Walk::refuseAt(const At &at, std::string why) {
  if (difference_)
    return {};
  std::string what = fmt::format("`{}` {}", opInfo(at.op).name, why);
  Spot spot = {at.role.index, at.role.run().segment, at.index};
  if (isForeignOperand_ || (foreign_ && dependsOn(at, foreignTerm_))) {
    difference_ = foreign_;
    difference_->note = "so " + what, difference_->noteAt = spot;
    return {};
  }
  difference_ = Finding{.rule = Rule::Specification, .message = std::move(what), .at = spot};
  if (foreign_)
    difference_->note = "before that, " + foreign_->message, difference_->noteAt = foreign_->at;
  return {};
}

/// Appends the segments that the program executes in the first two steps, in order. If runs name
/// their microbatches, all runs in one list of nodes together give the number of microbatches.
void Walk::addRuns(RoleWalk &walk, const std::vector<ProgramNode> &nodes) {
  std::vector<int64_t> named = namedMicrobatches(*walk.role, nodes);
  for (const ProgramNode &node : nodes) {
    addBodies(walk, {node}, named);
    if (node.kind != ProgramNode::Steps)
      continue;
    for (int64_t s = 0; s < std::min<int64_t>(node.count, 2); ++s) {
      size_t begin = walk.runs.size();
      addBodies(walk, node.children, namedMicrobatches(*walk.role, node.children));
      if (begin == walk.runs.size())
        continue;
      walk.runs[begin].isStepBegin = true;
      walk.runs.back().isStepEnd = true;
      for (const ProgramNode &child : node.children)
        if (child.kind == ProgramNode::Every && s == 0 && !child.children.empty()) {
          addRuns(walk, child.children);
          walk.runs.back().isEvalEnd = true;
        }
    }
  }
}

bool Walk::start(RoleWalk &walk) {
  const Role &role = *walk.role;
  walk.step = -1;
  for (const Cell &cell : role.cells)
    walk.cells.emplace_back(static_cast<size_t>(cell.slots), initial(cell, 0));
  for (const ProgramNode &node : role.program)
    if (node.kind == ProgramNode::Start && !followStart(walk, node.segment))
      return false;
  walk.runs.clear(), walk.at = 0;
  addRuns(walk, role.program);
  return true;
}

Value *Walk::slot(RoleWalk &walk, uint32_t cell, int64_t shift) {
  std::vector<Value> &slots = walk.cells[cell];
  auto count = static_cast<int64_t>(slots.size());
  int64_t at = (walk.run().microbatch + shift) % count;
  return &slots[static_cast<size_t>(at < 0 ? at + count : at)];
}

void Walk::enter(RoleWalk &walk) {
  if (walk.run().isStepBegin && ++walk.step == 0)
    beginSteps(walk);
  const Segment &segment = walk.segment();
  walk.values.assign(segment.values.size(), Value());
  walk.ins.clear();
  walk.ins.reserve(segment.body ? segment.ins.size() : 0);
  for (const Segment::Boundary &in : segment.ins) {
    walk.values[in.value] = *slot(walk, in.cell, in.shift);
    if (segment.body) // findBody() compares later inputs with these
      walk.ins.push_back(walk.values[in.value]);
  }
  walk.ops.resize(segment.ops.size());
  std::iota(walk.ops.begin(), walk.ops.end(), 0U);
  walk.isLeft.assign(segment.ops.size(), true);
  walk.memos = &memos_[&segment];
  walk.memos->resize(segment.ops.size());
  walk.isInSegment = true, walk.hasMet = false;
}

bool Walk::endRun(RoleWalk &walk) {
  if (walk.run().isStepEnd && !endStep(walk))
    return false;
  if (walk.run().isEvalEnd)
    for (size_t c = 0; c < walk.cells.size(); ++c) {
      Value &value = walk.cells[c][0];
      if (walk.role->cells[c].kind != CellKind::Step)
        continue;
      if (value.kind != Value::Step || value.step->evaluation.finished != walk.step)
        return refuse("role '{}': the evaluation does not end", walk.role->name);
      StepState ended = *value.step;
      ended.evaluation = LossSums();
      value = Value(std::move(ended));
    }
  walk.transfers.clear();
  ++walk.at;
  return true;
}

bool Walk::isReady(const RoleWalk &walk, const Op &op) const {
  auto isKnown = [&](ValueId value) {
    const Value &has = walk.values[value];
    uint32_t def = walk.segment().values[value].def;
    return has.kind != Value::Unknown || def == kNone || !walk.isLeft[def];
  };
  return std::ranges::all_of(op.operands, isKnown) &&
         std::ranges::all_of(op.ties, [&](const Tie &tie) { return isKnown(tie.value); });
}

/// Executes ops in order. If one waits for another role, later ops overtake it if they need neither
/// its results nor its channel.
bool Walk::advance(RoleWalk &walk, bool &hasMoved) {
  if (!walk.isInSegment) {
    if (skips_ && walk.isAtSecondStep())
      return true;
    if (walk.again || (walk.again = findBody(walk)))
      return executeAgain(walk, hasMoved);
    enter(walk);
  }
  std::vector<uint32_t> blocked;
  std::vector<std::pair<ChannelId, OpKind>> busy;
  for (uint32_t index : walk.ops) {
    const Op &op = walk.segment().ops[index];
    std::pair key = {op.channel, op.kind};
    bool isBlocked = op.channel >= 0 && std::ranges::find(busy, key) != busy.end();
    if (!isBlocked && !blocked.empty())
      isBlocked = !isReady(walk, op);
    if (!isBlocked && !step(walk, index, isBlocked))
      return false;
    if (isBlocked) {
      blocked.push_back(index);
      if (op.channel >= 0)
        busy.push_back(key);
      continue;
    }
    hasMoved = true;
    walk.isLeft[index] = false;
  }
  walk.ops = std::move(blocked);
  if (!walk.ops.empty())
    return true;
  for (const Segment::Boundary &out : walk.segment().outs)
    *slot(walk, out.cell, out.shift) = walk.values[out.value];
  walk.isInSegment = false, hasMoved = true;
  keepBody(walk);
  return endRun(walk);
}

/// The op's earlier results, if its operands are the same apart from the microbatch; null
/// otherwise.
const Memo *Walk::memoOf(const At &at) const {
  const Memo &memo = (*at.role.memos)[at.index];
  if (!memo.isKnown)
    return nullptr;
  int64_t by = microbatch(at.role) - memo.microbatch;
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    if (!isLater(operand(at, i), memo.operands[i], by))
      return nullptr;
  return &memo;
}

void Walk::send(const At &at) {
  RoleWalk &walk = at.role;
  const Op &op = at.op;
  const Channel &channel = plan_.channels[static_cast<size_t>(op.channel)];
  int64_t other = channel.pair[channel.pair[0] == coordinate(walk, op) ? 1 : 0];
  walk.transfers.push_back({{op.channel, other}, true, operand(at, 0)});
  queues_[{op.channel, other}].push_back(operand(at, 0));
}

bool Walk::step(RoleWalk &walk, uint32_t index, bool &isBlocked) {
  At at = {walk, walk.segment().ops[index], index};
  const Op &op = at.op;
  Values made;
  if (!holds(op.pred, walk.variant())) {
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else)
        walk.values[op.results[tie.result]] = walk.values[tie.value];
    return true;
  }
  ++visits_;
  bool passesUnknown = opInfo(op).sum == SumRole::Cuts || opInfo(op).sum == SumRole::Passes;
  for (ValueId value : op.operands)
    if (walk.values[value].kind == Value::Unknown && passesUnknown)
      return true; // the operand belongs to a sum that has not begun
    else if (walk.values[value].kind == Value::Unknown)
      return refuse(at, "takes `%{}`, which is unknown", walk.segment().values[value].name);
    else
      noteUse(walk.values[value]);
  if (op.kind == OpKind::Recv) {
    const QueueKey key = {op.channel, coordinate(walk, op)};
    std::deque<Value> &queue = queues_[key];
    isBlocked = queue.empty();
    if (isBlocked)
      return true;
    walk.transfers.push_back({key, false, queue.front()});
    queue.pop_front();
    return finish(at, {walk.transfers.back().value});
  }
  if (op.kind == OpKind::Send) {
    send(at);
    return true;
  }
  bool isSum = op.kind == OpKind::AllReduce && operand(at, 0).kind != Value::Packed;
  if (isSum && !rolesApart(at).empty()) {
    walk.hasMet = true;
    made = meet(at, isBlocked);
    return isBlocked || finish(at, std::move(made));
  }
  auto isOfOne = [](const Value &value) { return value.isOne() && !value.state.isSum(); };
  bool mayKeep = walk.segment().body && op.kind != OpKind::BatchLoad &&
                 std::ranges::all_of(op.operands, isOfOne, [&](ValueId value) -> const Value & {
                   return walk.values[value];
                 });
  if (mayKeep)
    if (const Memo *memo = memoOf(at)) {
      int64_t by = microbatch(walk) - memo->microbatch;
      for (const Value &value : memo->made)
        made.push_back(advanced(value, by));
      if (!op.ties.empty())
        return finish(at, std::move(made));
      for (size_t r = 0; r < op.results.size(); ++r)
        walk.values[op.results[r]] = std::move(made[r]);
      checkRows(at);
      return !difference_;
    }
  made = follow(at);
  if (mayKeep && std::ranges::all_of(made, isOfOne)) {
    Memo &memo = (*walk.memos)[index];
    memo.isKnown = true, memo.microbatch = microbatch(walk), memo.made = made;
    memo.operands.clear();
    memo.operands.reserve(op.operands.size());
    for (ValueId value : op.operands)
      memo.operands.push_back(walk.values[value]);
  }
  return finish(at, std::move(made));
}

/// Adds the content of a result's buffer, and looks for terms that the model does not have. Returns
/// false if the op was refused.
bool Walk::finish(const At &at, Values made) {
  if (difference_)
    return false;
  for (const Tie &tie : at.op.ties) {
    if (tie.kind != Tie::Acc || !holds(tie.pred, at.role.variant()))
      continue;
    Value &result = made[tie.result];
    noteUse(at.role.values[tie.value]);
    result = added(at, at.role.values[tie.value], result);
  }
  if (int8_t squares = opInfo(at.op).squares;
      squares >= 0 && static_cast<size_t>(squares) < made.size())
    made[static_cast<size_t>(squares)].list =
        std::make_shared<const Values>(Values{made[static_cast<size_t>(opInfo(at.op).squared)]});
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    const Value &value = made[r];
    bool isForeign = !isSpecification_ && at.role.segment().body && value.isOne() &&
                     !value.state.isSum() && !terms_.isOfModel(value.state.term) && !foreign_ &&
                     terms_[value.state.term].op != OpKind::VocabStats;
    if (isForeign)
      noteForeign(at, r, value.state.term);
    if (isSpecification_ && value.isOne() && value.state.term != kNoTerm)
      terms_.setName(value.state.term, at.role.segment().values[at.op.results[r]].name);
    at.role.values[at.op.results[r]] = std::move(made[r]);
  }
  checkRows(at);
  return !difference_;
}

/// Records that a result is not a value of the model.
void Walk::noteForeign(const At &at, size_t result, TermId term) {
  std::string text = unlikeModel(at, result, terms_[innermostForeign(at, term)]);
  if (text.empty()) {
    text = fmt::format("`%{}` is not a value of the model",
                       at.role.segment().values[at.op.results[result]].name);
    bool hasOp = stepsOf(at.op.kind, at.op.operands.size(), at.op.results.size()) != nullptr;
    for (TermId id = 0; id < terms_.count(); ++id)
      hasOp |= terms_.isOfModel(id) && terms_[id].op == at.op.kind;
    if (!hasOp)
      text += fmt::format(
          ", which has no `{}`; the op needs a row with steps if it stands for other ops",
          opInfo(at.op).name);
  }
  foreignTerm_ = term;
  foreign_ = Finding{.rule = Rule::Specification,
                     .message = std::move(text),
                     .at = {at.role.index, at.role.run().segment, at.index}};
}

/// The term that the model lacks because of the op: the result's, or that of a step of the op.
TermId Walk::innermostForeign(const At &at, TermId term) const {
  auto isMade = [&](TermId operand) {
    return operand != kNoTerm && !terms_.isOfModel(operand) &&
           std::ranges::none_of(at.op.operands, [&](ValueId value) {
             return at.role.values[value].state.term == operand;
           });
  };
  for (;;) {
    const std::vector<TermId> &operands = terms_[term].operands;
    auto inner = std::ranges::find_if(operands, isMade);
    if (inner == operands.end())
      return term;
    term = *inner;
  }
}

/// What distinguishes the term from the model's term of the same op: its attributes, or one
/// operand. Empty if the model has no such term.
std::string Walk::unlikeModel(const At &at, size_t result, const Term &made) {
  const Segment &segment = at.role.segment();
  auto nameOf = [&](TermId term) {
    for (ValueId value : at.op.operands)
      if (terms_.name(term).empty() && at.role.values[value].state.term == term)
        return segment.values[value].name;
    return terms_.name(term);
  };
  std::string operandText;
  for (TermId id = 0; id < terms_.count() && made.kind == Term::Apply; ++id) {
    const Term &term = terms_[id];
    if (!terms_.isOfModel(id) || term.kind != Term::Apply || term.op != made.op ||
        term.result != made.result || term.operands.size() != made.operands.size())
      continue;
    size_t other = 0, count = 0;
    for (size_t i = 0; i < made.operands.size(); ++i)
      if (made.operands[i] != term.operands[i])
        other = i, ++count;
    if (count > 1)
      continue;
    auto [found, needed] = unlikeAttrs(made, term);
    if (count == 0 && !found.empty()) {
      std::string op = fmt::format("`{}`", opInfo(at.op).name);
      if (made.op != at.op.kind)
        op = fmt::format("step `{}` of {}", opInfo(made.op).name, op);
      return fmt::format("`%{}`: {} has {}; the model needs {}",
                         segment.values[at.op.results[result]].name, op, fmt::join(found, " and "),
                         fmt::join(needed, " and "));
    }
    bool isNamed = count == 1 && found.empty() && operandText.empty() &&
                   made.operands[other] != kNoTerm && !terms_.name(term.operands[other]).empty();
    if (isNamed && !nameOf(made.operands[other]).empty())
      operandText = fmt::format("`%{}` is used where `%{}` is meant", nameOf(made.operands[other]),
                                terms_.name(term.operands[other]));
  }
  isForeignOperand_ = !operandText.empty();
  return operandText;
}

/// Whether one of the op's operands contains the term, or was computed from it.
bool Walk::dependsOn(const At &at, TermId term) const {
  std::vector<TermId> left;
  auto addState = [&](const State &state) {
    left.push_back(state.term);
    for (const Contribution &each : state.sum)
      left.push_back(each.term);
  };
  std::vector<const Value *> values;
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    values.push_back(&operand(at, i));
  while (!values.empty()) {
    const Value &value = *values.back();
    values.pop_back();
    addState(value.state);
    if (value.block)
      std::ranges::for_each(value.block->params, addState);
    if (value.step)
      for (const LossSums *sums : {&value.step->training, &value.step->evaluation})
        for (const LossSums::Of &of : sums->losses)
          addState(of.loss), addState(of.tokens);
    if (value.maxima)
      for (const auto &[slot, entry] : value.maxima->entries)
        addState(entry.of);
    if (value.list)
      for (const Value &each : *value.list)
        values.push_back(&each);
  }
  std::vector<bool> isSeen(terms_.count());
  isSeen[kNoTerm] = true;
  while (!left.empty() && left.back() != term) {
    TermId from = left.back();
    left.pop_back();
    if (!isSeen[from])
      left.insert(left.end(), terms_[from].operands.begin(), terms_[from].operands.end());
    isSeen[from] = true;
  }
  return !left.empty();
}

/// Reports the first op of a role that waits for ever.
bool Walk::refuseWaiting() {
  for (RoleWalk &walk : roles_)
    if (!walk.isDone() && walk.isInSegment && !walk.ops.empty()) {
      uint32_t index = walk.ops.front();
      return refuse({walk, walk.segment().ops[index], index},
                    "waits for a value that no role sends");
    }
  return refuse("roles wait for each other");
}

bool Walk::run() {
  if (!checkTables())
    return false;
  for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
    roles_.emplace_back().role = &plan_.roles[r];
    roles_.back().index = r;
  }
  for (RoleWalk &walk : roles_)
    if (!start(walk))
      return false;
    else if (std::ranges::none_of(walk.runs, &Run::isStepBegin))
      return refuse("role '{}' has no steps", walk.role->name);
  for (bool hasMoved = true; std::exchange(hasMoved, false);)
    for (RoleWalk &walk : roles_)
      while (!walk.isDone()) {
        bool hasAdvanced = false;
        if (!advance(walk, hasAdvanced))
          return false;
        hasMoved |= hasAdvanced;
        if (walk.isInSegment || !hasAdvanced)
          break;
      }
  if (!std::ranges::all_of(roles_, &RoleWalk::isDone) && !(skips_ && isInduction()))
    return !skips_ && refuseWaiting();
  for (int64_t step = 0; step <= roles_[0].step; ++step)
    if (int64_t roles = rolesWithLosses_[{false, step}]; roles != 1)
      return refuse("{} roles have the losses of a step", roles);
  if (int64_t roles = rolesWithLosses_[{true, 0}]; roles != (goals_.evalMicrobatches > 0 ? 1 : 0))
    return refuse("{} roles have the losses of an evaluation", roles);
  return true;
}

Comparison compare(const Plan &specification, const Plan &plan) {
  Terms terms;
  Comparison comparison;
  Goals goals;
  goals.plan = &specification;
  for (const Param &param : specification.params)
    goals.params.emplace(param.name, goals.params.size());
  auto readStep = [&] {
    terms.readsModel(true);
    Walk logical(specification, terms, goals, true, false);
    bool isRead = logical.readStep(goals);
    terms.readsModel(false);
    if (isRead)
      return true;
    comparison.difference = logical.difference();
    comparison.difference->message.insert(0, "specification: ");
    comparison.difference->at = Spot();
    return false;
  };
  // An evaluation uses the first step's results.
  if (!readStep() || (goals.evalMicrobatches > 0 && !readStep()))
    return comparison;
  for (bool skips : {true, false}) {
    if (!skips && goals.steps.size() < 2 && !readStep())
      break;
    Walk placed(plan, terms, goals, false, skips);
    bool isEqual = placed.run();
    comparison.difference = placed.difference();
    comparison.visits += placed.visits();
    comparison.declared = placed.declared();
    if (isEqual || comparison.difference)
      break;
  }
  return comparison;
}

} // namespace shardc::plan::spec
