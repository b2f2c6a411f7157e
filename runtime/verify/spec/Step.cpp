// Handles blocks of parameters, the sums of a step, and the optimizer.
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/plan/Builder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
/// The mesh axes along which ranks divide the block if each rank has `numel` of its elements.
/// Nothing if the plan has no such block, or does not divide it into parts of this size.
std::optional<std::vector<uint16_t>> Walk::divided(int64_t block, int64_t numel) const {
  if (block < 0 || block >= static_cast<int64_t>(plan_.blocks.size()))
    return std::nullopt;
  std::optional<BlockPart> part = partOf(plan_.blocks[static_cast<size_t>(block)], numel);
  return part ? std::optional(mesh_.axesOf(part->group)) : std::nullopt;
}

State Walk::paramState(size_t index, TermId term) const {
  const Param &param = plan_.params[index];
  State state;
  state.term = term;
  state.edit().whole = param.wholeType();
  if (param.whole.rank == 0)
    return state;
  for (const Split &split : param.splits) {
    int64_t outer = split.parts;
    for (uint8_t d = 0; d < split.dim; ++d)
      outer *= param.whole.shape[d];
    for (uint16_t axis : mesh_.axesOf(split.group)) {
      state.put({axis, Place::Shard, outer});
      outer *= plan_.mesh[axis].size;
    }
  }
  return state;
}

/// The term of a parameter, or of its moment, after `steps` steps.
TermId Walk::parameterOfGoal(Term::Kind kind, int64_t goal, int64_t steps) {
  bool isUpdated = steps > 0 && goals_.isTrained(goal);
  if (!isUpdated) {
    TermId term = terms_.of(kind, goal);
    terms_.setShape(term, goals_.plan->params[static_cast<size_t>(goal)].wholeType());
    return term;
  }
  OpKind op = optimizerInfo(*optimizerOfParam(*goals_.plan, goal)).op;
  std::string_view names = opInfo(op).operands;
  Term term = {Term::Updated, op, 0, goal, {}, {parameterOfGoal(Term::Parameter, goal, steps - 1)}};
  term.result = kind == Term::Parameter ? 0 : kind == Term::FirstMoment ? 1 : 2;
  for (auto [name, moment] :
       {std::pair("m", Term::FirstMoment), std::pair("v", Term::SecondMoment)})
    if (positionOf(names, name) >= 0)
      term.operands.push_back(parameterOfGoal(moment, goal, steps - 1));
  return terms_.of(std::move(term));
}

namespace {

std::optional<Term::Kind> keptKind(CellKind kind) {
  switch (kind) {
  case CellKind::Weight:
  case CellKind::WeightShard:
  case CellKind::Master:
    return Term::Parameter;
  case CellKind::FirstMoment:
    return Term::FirstMoment;
  case CellKind::SecondMoment:
    return Term::SecondMoment;
  default:
    return std::nullopt;
  }
}

/// Whether a run reports what cells of this kind have at the end of a step.
bool isReported(CellKind kind) {
  return kind == CellKind::ExpertLoad || kind == CellKind::RouterLosses ||
         kind == CellKind::PredictionLosses || kind == CellKind::PreferenceSums;
}

/// Whether a cell stores numbers as the optimizer computes them, in the type that the job chooses.
bool isExact(const Cell &cell) {
  return cell.kind != CellKind::Weight && cell.kind != CellKind::WeightShard;
}

} // namespace

State Walk::kept(CellKind kind, const Type &type) {
  State kept;
  kept.term = terms_.of(Term::Kept, static_cast<int64_t>(kind));
  kept.edit().whole = type;
  return kept;
}

/// The bias of experts after `steps` steps.
State Walk::biasAfter(const Type &type, int64_t steps) {
  State bias = kept(CellKind::ExpertBias, type);
  for (; steps > 0; --steps)
    bias.term = terms_.of({Term::Updated, OpKind::ExpertBiasUpdate, 0, 0, {}, {bias.term}});
  return bias;
}

/// A buffer of the block's parameters or moments after `steps` steps; unknown if its size does not
/// fit.
Value Walk::stored(Term::Kind kind, int64_t block, const Type &type, bool isExact, int64_t steps) {
  std::optional<std::vector<uint16_t>> axes = divided(block, type.numel());
  if (!axes)
    return {};
  BlockState state = {static_cast<int32_t>(block), {}, *axes, {}};
  for (size_t p : paramsOf(state.block)) {
    TermId term = parameter(kind, p, steps);
    state.params.push_back(paramState(p, isExact ? term : inType(type.dtype, term)));
  }
  return state;
}

/// A cell's content after `steps` steps.
Value Walk::initial(const Cell &cell, int64_t steps) {
  auto index = static_cast<size_t>(cell.of);
  switch (cell.kind) {
  case CellKind::Feed:
  case CellKind::EvalFeed:
  case CellKind::Stop:
    return Value::Host;
  case CellKind::Step:
    return StepState();
  case CellKind::Param:
    return paramState(index, inType(cell.type.dtype, parameter(Term::Parameter, index, steps)));
  case CellKind::ExpertBias:
    return biasAfter(cell.type, steps);
  case CellKind::Amax:
  case CellKind::AmaxSeen:
  case CellKind::AmaxHistory:
  case CellKind::WeightScales:
    return initialMaxima(cell, steps);
  default:
    if (std::optional<Term::Kind> kind = keptKind(cell.kind))
      return stored(*kind, cell.of, cell.type, isExact(cell), steps);
    return {};
  }
}

bool Walk::readStep(Goals &goals) {
  if (plan_.roles.size() != 1 || plan_.level != Level::Logical || !optimizerOf(plan_.job))
    return refuse("is not a logical plan of one role with an optimizer");
  const Role &role = plan_.roles[0];
  Goals::Step step;
  dataAxes_.clear(); // the specification has a single rank
  std::vector<Values> cells;
  for (uint32_t s = 0; s < role.segments.size(); ++s) {
    bool isEval = role.segments[s].kind == SegmentKind::Eval;
    if (!isEval && role.segments[s].kind != SegmentKind::Train)
      continue;
    std::vector<Values> left;
    auto losses = readLosses(s, isEval, left);
    if (!losses)
      return false;
    (isEval ? step.evaluated : step.losses) = std::move(*losses);
    if (!isEval)
      cells = std::move(left);
    for (const Op &op : role.segments[s].ops)
      if (op.kind == OpKind::StepBegin)
        goals.stepBegin = &op;
    auto count = [&](const ProgramNode &node, const auto &self) -> void {
      if (node.kind == ProgramNode::Run && node.segment == s)
        (isEval ? goals.evalMicrobatches : goals.microbatches) = node.count;
      for (const ProgramNode &child : node.children)
        self(child, self);
    };
    for (const ProgramNode &node : role.program)
      count(node, count);
  }
  if (cells.empty())
    return refuse("has no training segment");
  step.gradients.resize(plan_.params.size());
  for (size_t c = 0; c < role.cells.size(); ++c)
    if (const Value &value = cells[c][0];
        value.isOne() &&
        (role.cells[c].kind == CellKind::ParamGradient || isReported(role.cells[c].kind))) {
      std::vector<TermId> &summands = isReported(role.cells[c].kind)
                                          ? step.reported[role.cells[c].kind]
                                          : step.gradients[static_cast<size_t>(role.cells[c].of)];
      for (const Contribution &each : contributionsOf(terms_, value.state))
        summands.push_back(each.term);
      std::ranges::sort(summands);
    }
  for (const auto &[slot, of] : scaled_)
    if (auto trained = uses_.find(slot); trained != uses_.end())
      step.evaluatedScales.emplace(trained->second.first, of.first);
  goals.steps.push_back(std::move(step));
  return true;
}

/// Walks one microbatch of a specification's segment, and stores the cells in `cells`.
std::optional<std::vector<std::pair<TermId, TermId>>>
Walk::readLosses(uint32_t segment, bool isEval, std::vector<Values> &cells) {
  roles_.clear();
  RoleWalk &walk = roles_.emplace_back();
  walk.role = &plan_.roles[0];
  walk.runs = {{segment}};
  for (const Cell &cell : walk.role->cells)
    walk.cells.emplace_back(static_cast<size_t>(cell.slots),
                            initial(cell, static_cast<int64_t>(goals_.steps.size())));
  for (bool hasMoved = true; !walk.isDone() && hasMoved;) {
    hasMoved = false;
    if (!advance(walk, hasMoved))
      return std::nullopt;
  }
  std::vector<std::pair<TermId, TermId>> losses;
  for (const Values &cell : walk.cells)
    if (cell[0].kind == Value::Step)
      for (const LossSums::Of &of : cell[0].step->sums(isEval).losses)
        losses.emplace_back(of.loss.term, of.tokens.term);
  cells = std::move(walk.cells);
  return losses;
}

Values Walk::followReset(const At &) { return {StepState()}; }

Values Walk::beginStep(const At &at) {
  const Value &before = operand(at, 0);
  if (before.kind != Value::Step || before.step->training.begun != at.role.step - 1 ||
      before.step->training.finished != at.role.step - 1)
    return refuse(at, "does not take the step state that the step before has left");
  if (!isSpecification_ &&
      (!goals_.stepBegin || !std::ranges::equal(at.op.attrs, goals_.stepBegin->attrs, areSame)))
    return refuse(at, "has a schedule that differs from the model's");
  StepState step;
  step.training.begun = at.role.step;
  return {std::move(step)};
}

Values Walk::beginEval(const At &at) {
  if (operand(at, 0).kind != Value::Step)
    return refuse(at, "takes a value that is not a step state");
  StepState step = *operand(at, 0).step;
  step.evaluation = LossSums();
  step.evaluation.begun = at.role.step;
  return {std::move(step)};
}

/// The summands in each microbatch of the step.
std::vector<Contribution> Walk::ofAllMicrobatches(const RoleWalk &walk,
                                                  const std::vector<TermId> &terms) const {
  std::vector<Contribution> all;
  int64_t base = walk.step * kStep;
  for (TermId term : terms)
    all.push_back({term, base, base + goals_.microbatches - 1});
  std::ranges::sort(all);
  return all;
}

/// Whether the value is what cells of this kind have of all microbatches, summed over all ranks.
bool Walk::isOfAll(const RoleWalk &walk, CellKind kind, const Value &sum) const {
  const auto &reported = goals_.steps[static_cast<size_t>(walk.step)].reported;
  auto goal = reported.find(kind);
  if (!sum.isOne() || goal == reported.end() || !sum.state->multiple.isOne() ||
      !sum.state->cover.isAll() || sum.state.hasRowsOfAll())
    return false;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis)
    if (sum.state.is(axis, Place::Summed) != (extentOf(*walk.role, axis) > 1) ||
        (sum.state.at(axis) && !sum.state.is(axis, Place::Summed)))
      return false;
  return contributionsOf(terms_, sum.state) == ofAllMicrobatches(walk, goal->second);
}

/// The bias of the next step, which changes by the load of all microbatches and samples.
Values Walk::updateBias(const At &at) {
  const Value &bias = operand(at, 0);
  if (!isOfAll(at.role, CellKind::ExpertLoad, operand(at, 1)))
    return refuse(at, "does not take the load of all microbatches and samples");
  if (!bias.isOne() || bias.state.term != biasAfter({}, at.role.step).term)
    return refuse(at, "does not take the experts' bias that the step before has left");
  State next = bias.state;
  next.term = biasAfter({}, at.role.step + 1).term;
  return {std::move(next)};
}

/// Parameters as they begin, by the parameter table.
Values Walk::followInit(const At &at) {
  Values made;
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    made.push_back(stored(Term::Parameter, at.op.getInt(AttrKey::block),
                          typeOf(at, at.op.results[r]),
                          r == resultIndex<OpKind::InitBlock>("remainder"), 0));
    if (made.back().kind == Value::Unknown)
      return refuse(at, "makes no part of its block");
  }
  return made;
}

/// Whether the cell's content is what a run needs.
bool Walk::hasNeeded(const Cell &cell, const Value &found, const Value &needed) const {
  auto isSame = [&](const State &a, const State &b) {
    return (isExact(cell) ? terms_.bare(a.term) == terms_.bare(b.term) : a.term == b.term) &&
           a->places == b->places;
  };
  return isPartOf(found, *needed.block) &&
         std::ranges::equal(found.block->params, needed.block->params, isSame);
}

/// Follows the segment with which a run without a checkpoint begins. It must make what a load
/// leaves of a first step's parameters and moments.
bool Walk::followStart(RoleWalk &walk, uint32_t segment) {
  const std::vector<Values> loaded = walk.cells;
  std::vector<size_t> missing;
  for (size_t c = 0; c < loaded.size(); ++c)
    if (CellKind kind = walk.role->cells[c].kind; keptKind(kind) || kind == CellKind::WeightScales)
      walk.cells[c] = Values(loaded[c].size()); // unknown where the segment makes nothing
  walk.runs = {{segment}}, walk.at = 0;
  for (bool hasMoved = true; !walk.isDone();) {
    if (!std::exchange(hasMoved, false))
      return refuse("role '{}' waits for another one in its start", walk.role->name);
    if (!advance(walk, hasMoved))
      return false;
  }
  for (size_t c = 0; c < loaded.size(); ++c) {
    const Cell &cell = walk.role->cells[c];
    std::optional<Term::Kind> kind = keptKind(cell.kind);
    const Value &needed = loaded[c][0], &found = walk.cells[c][0];
    if (cell.kind == CellKind::WeightScales && !hasScales(*walk.role, found, *needed.maxima))
      return refuse("role '{}': cell '@{}' begins without scales of frozen weights",
                    walk.role->name, cell.name);
    bool isMoment = kind && *kind != Term::Parameter;
    bool isOfRun = cell.kind == CellKind::AmaxHistory || cell.kind == CellKind::ExpertBias;
    bool isUntouched =
        found.kind == needed.kind && (!found.isOne() || found.state.term == needed.state.term);
    if (isOfRun && !isUntouched && !(found.isOne() && terms_.isZero(found.state.term)))
      return refuse("role '{}': cell '@{}' does not begin with zeros", walk.role->name, cell.name);
    if (kind && found.kind == Value::Unknown)
      missing.push_back(c);
    else if (kind && needed.isBlock() && !hasNeeded(cell, found, needed) &&
             !(isMoment && found.isOne() && terms_.isZero(found.state.term)))
      return refuse("role '{}': cell '@{}' begins with other values than the model's",
                    walk.role->name, cell.name);
  }
  walk.cells = loaded;
  for (size_t c : missing) // steps must write them before they read them
    walk.cells[c] = Values(loaded[c].size());
  return true;
}

Values Walk::finishSums(const At &at) {
  bool isEval = at.op.kind == OpKind::EvalFinish;
  const Value &state = operand(at, 0), &reduced = operand(at, 1);
  bool isOfOne =
      std::ranges::all_of(plan_.mesh, [](const MeshAxis &axis) { return axis.size == 1; });
  bool isSummed = reduced.kind == Value::Reduced || (reduced.kind == Value::Packed && isOfOne);
  if (!isSummed || state.kind != Value::Step || !(*reduced.step == *state.step) ||
      isEval != (reduced.op == nullptr) || (!isEval && operand(at, 2).list != reduced.list))
    return refuse(at, "takes other sums than those that it ends");
  constexpr AttrKey kOwn = AttrKey::norm_replicated;
  if (!isEval && at.op.getBool(kOwn) != reduced.op->getBool(kOwn))
    return refuse(at, "takes other squares for the norm than ranks have packed");
  StepState step = *state.step;
  if (std::exchange(step.sums(isEval).finished, at.role.step) == at.role.step)
    return refuse(at, "ends the same sums twice");
  return {std::move(step)};
}

Values Walk::followLossAdd(const At &at) {
  if (operand(at, 0).kind != Value::Step || !operand(at, 1).isOne() || !operand(at, 2).isOne())
    return refuse(at, "adds values that are not losses");
  StepState step = *operand(at, 0).step;
  LossSums &sums = step.sums(at.op.kind == OpKind::EvalAdd);
  State loss = operand(at, 1).state, tokens = operand(at, 2).state;
  int64_t number = loss.microbatch;
  if (number != tokens.microbatch || loss.isSum() || tokens.isSum())
    return refuse(at, "adds losses and tokens of different microbatches");
  loss.microbatch = tokens.microbatch = -1;
  for (LossSums::Of &of : sums.losses)
    if (of.loss == loss && of.tokens == tokens && of.last == number - 1) {
      of.last = number;
      return {std::move(step)};
    }
  sums.losses.push_back({std::move(loss), std::move(tokens), number, number});
  return {std::move(step)};
}

Values Walk::followSquares(const At &at) {
  Value squares = Value::Squares;
  squares.op = &at.op;
  Values list;
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    list.push_back(operand(at, i));
  squares.list = std::make_shared<const Values>(std::move(list));
  return {squares};
}

Values Walk::followSumsPack(const At &at) {
  bool isEval = at.op.kind == OpKind::EvalPack;
  const Value &step = operand(at, 0);
  Value packed = Value::Packed;
  if (step.kind != Value::Step)
    return refuse(at, "packs a value that is not a step state");
  packed.step = step.step;
  if (!isSpecification_)
    checkLosses(at, *step.step, isEval);
  if (isEval)
    return {packed};
  const Value &squares = operand(at, 1);
  if (squares.kind != Value::Squares || squares.op == nullptr)
    return refuse(at, "packs a value that is not a sum of squares");
  checkNorm(at, squares);
  if (operand(at, operandIndex<OpKind::StepPack>("stop")).kind != Value::Host)
    return refuse(at, "takes its stop flag from what the host does not write");
  packed.op = &at.op, packed.list = squares.list;
  return {packed};
}

/// Checks that each microbatch's losses are added once, and that as many ranks have equal losses as
/// the op says.
void Walk::checkLosses(const At &at, const StepState &step, bool isEval) {
  const LossSums &sums = step.sums(isEval);
  int64_t base = at.role.step * kStep;
  if (sums.begun != at.role.step)
    refuse(at, "takes sums that have not begun");
  if (sums.losses.empty()) // another stage has them
    return;
  ++rolesWithLosses_[{isEval, at.role.step}];
  auto number = static_cast<size_t>(at.role.step + (isEval ? 1 : 0));
  std::map<std::pair<TermId, TermId>, int64_t> next; // by loss and tokens
  if (number < goals_.steps.size())
    for (const auto &goal : isEval ? goals_.steps[number].evaluated : goals_.steps[number].losses)
      next[goal] = base;
  std::vector<LossSums::Of> losses = sums.losses; // schedules may add them in another order
  std::ranges::stable_sort(losses, {}, &LossSums::Of::first);
  for (const LossSums::Of &of : losses) {
    auto found = next.find({of.loss.term, of.tokens.term});
    if (found == next.end()) {
      refuse(at, "takes losses that the model does not have");
      return;
    }
    if (found->second != of.first)
      refuse(at, "takes losses of a microbatch twice, or not at all");
    found->second = of.last + 1;
    int64_t have = copiesOf(at, of), copies = at.op.getInt(AttrKey::loss_copies);
    if (have != copies && !isEval) // in evaluations, copies of losses and tokens cancel
      refuse(at, "has {} copies of the losses, not {}", have, copies);
  }
  int64_t count = isEval ? goals_.evalMicrobatches : goals_.microbatches;
  for (auto &[goal, end] : next)
    if (end != base + count)
      refuse(at, "takes losses of {} microbatches, the model has {}", end - base, count);
}

/// The number of the role's ranks that have equal losses.
int64_t Walk::copiesOf(const At &at, const LossSums::Of &of) {
  if (!of.loss->order.isOfDims() || of.loss.hasRowsOfAll() || of.tokens.hasRowsOfAll() ||
      !of.loss->multiple.isOne() || !of.tokens->multiple.isOne())
    refuse(at, "takes multiples of losses");
  int64_t have = 1;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis) {
    int64_t ranks = extentOf(*at.role.role, axis);
    if (ranks == 1)
      continue;
    const Place *loss = of.loss.at(axis), *tokens = of.tokens.at(axis);
    bool isEqual = loss == nullptr && tokens == nullptr;
    bool isKnown = loss && tokens && loss->kind == Place::Shard && tokens->kind == Place::Part;
    if (contains(dataAxes_, axis))
      isKnown = loss && tokens && loss->kind == Place::Instance && tokens->kind == Place::Instance;
    else
      isKnown |= isEqual;
    if (!isKnown)
      refuse(at, "takes losses and tokens with an unknown placement");
    have *= isEqual ? ranks : 1;
  }
  return have;
}

/// Checks that the state is the parameter's gradient, summed over all microbatches and samples.
void Walk::checkComplete(const At &at, const State &state, size_t param) {
  const std::string &name = plan_.params[param].name;
  auto isSum = [](const Place *place) {
    return place && (place->kind == Place::Summed || place->isSummed);
  };
  for (uint16_t axis : dataAxes_)
    if (!isSum(state.at(axis)))
      refuse(at, "takes a gradient of '{}' that is not summed over {}", name, mesh_.name(axis));
  for (const Place &place : state->places)
    if (place.kind != Place::Shard && !isSum(&place))
      refuse(at, "takes a gradient of '{}' that is not complete along {}", name,
             mesh_.name(place.axis));
  if (!state->cover.isAll() || !state->order.isOfDims() || state.hasRowsOfAll())
    refuse(at, "takes only a part of the gradient of '{}'", name);
  Multiple needed;
  const Job &job = goals_.plan->job;
  if (job.ddp.averageInCollective && !job.model.calculatePerTokenLoss)
    for (GroupKind kind : {GroupKind::Data, GroupKind::Context}) // ranks have different tokens
      needed.divide(mesh_.members(mesh_.axesOf(kind)));
  if (!(state->multiple == needed))
    refuse(at, "takes {}/{} of the gradient of '{}', not {}/{}", state->multiple.over,
           state->multiple.under, name, needed.over, needed.under);
  const std::vector<TermId> &goal = goalsOf(at).gradients[static_cast<size_t>(goalOf_[param])];
  std::vector<Contribution> found = contributionsOf(terms_, state);
  bool areOfModel = std::ranges::all_of(
      found, [&](const Contribution &each) { return std::ranges::binary_search(goal, each.term); });
  if (found != ofAllMicrobatches(at.role, goal))
    refuse(at, "takes {} the gradient of '{}'",
           areOfModel ? "contributions of other microbatches to" : "something else than", name);
}

/// Checks one of the gradients that a norm takes. Along these axes, ranks have different parts of
/// it.
void Walk::checkNormPart(const At &at, const State &gradient, size_t index,
                         const std::vector<uint16_t> &axes, int64_t copies) {
  const Param &param = plan_.params[index];
  checkComplete(at, gradient, index);
  std::set<uint16_t> divided(axes.begin(), axes.end()); // or equal by design
  auto divide = [&](int group) {
    for (uint16_t axis : mesh_.axesOf(group))
      divided.insert(axis);
  };
  std::ranges::for_each(param.splits, divide, &Split::group);
  std::ranges::for_each(param.copies, divide);
  int64_t have = 1;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis)
    have *= divided.contains(axis) ? 1 : extentOf(*at.role.role, axis);
  if (!at.op.getBool(AttrKey::norm_replicated) && have != copies)
    refuse(at, "has '{}' of {} ranks, but divides its squares by {}", param.name, have, copies);
  if (at.op.getBool(AttrKey::norm_replicated) &&
      (!divided.empty() || copies != 1 || plan_.roles.size() != 1))
    refuse(at, "takes a part of the squares of '{}' for all", param.name);
}

/// Checks that the norm has the gradient of each parameter once.
void Walk::checkNorm(const At &at, const Value &squares) {
  std::multiset<size_t> found, meant;
  for (size_t i = 0; i < squares.list->size(); ++i) {
    const Value *value = &(*squares.list)[i];
    bool isOfAll = value->kind == Value::Squares && value->list && value->list->size() == 1;
    if (isOfAll) // squares of another op, which knows no copies of parameters
      value = &value->list->front();
    const ListedBlock *named = i < squares.op->blocks.size() ? &squares.op->blocks[i] : nullptr;
    int64_t copies = named ? named->copies : 1;
    std::optional<size_t> param = value->isOne() ? paramOf(at, value->state) : std::nullopt;
    auto checkBlock = [&](int32_t block) {
      if (named && block != named->block)
        refuse(at, "has squares of block '{}', which it says are of block '{}'",
               plan_.blocks[static_cast<size_t>(block)].name,
               plan_.blocks[static_cast<size_t>(named->block)].name);
    };
    if (param) {
      if (!isOfAll)
        checkBlock(plan_.params[*param].block);
      found.insert(*param);
      checkNormPart(at, value->state, *param, {}, copies);
    } else if (!value->isBlock()) {
      refuse(at, "has squares of a value that is not a gradient");
    } else {
      checkBlock(value->block->block);
      const std::vector<size_t> &params = paramsOf(value->block->block);
      found.insert(params.begin(), params.end());
      for (size_t p = 0; p < params.size(); ++p)
        checkNormPart(at, value->block->params[p], params[p], value->block->axes, copies);
    }
    if (param && isOfAll && !plan_.params[*param].copies.empty())
      refuse(at, "takes the squares of all copies of '{}'", plan_.params[*param].name);
  }
  for (size_t p = 0; p < plan_.params.size(); ++p)
    if (countsNorm(at.role, p))
      meant.insert(p);
  if (found != meant)
    refuse(at, "does not have the gradient of each parameter once");
}

/// The parameter whose gradient this is; none if there is none.
std::optional<size_t> Walk::paramOf(const At &at, const State &gradient) const {
  std::vector<TermId> terms;
  for (const Contribution &each : contributionsOf(terms_, gradient))
    terms.push_back(each.term);
  for (size_t p = 0; p < plan_.params.size(); ++p)
    if (!terms.empty() && goalsOf(at).gradients[static_cast<size_t>(goalOf_[p])] == terms)
      return p;
  return std::nullopt;
}

/// Whether the role's norm must count the parameter: the role trains it, and no earlier role does.
bool Walk::countsNorm(const RoleWalk &walk, size_t param) {
  if (roleOfBlock_.empty()) {
    roleOfBlock_.assign(plan_.blocks.size(), kNone);
    for (uint32_t r = 0; r < plan_.roles.size(); ++r)
      for (const Cell &cell : plan_.roles[r].cells)
        if (keptKind(cell.kind))
          roleOfBlock_[static_cast<size_t>(cell.of)] =
              std::min(roleOfBlock_[static_cast<size_t>(cell.of)], r);
  }
  return roleOfBlock_[static_cast<size_t>(plan_.params[param].block)] == walk.index &&
         goals_.isTrained(goalOf_[param]);
}

/// The operand of this name; null if the op has none.
const Value *Walk::operandOf(const At &at, std::string_view name) const {
  int i = positionOf(opInfo(at.op).operands, name);
  return i < 0 || static_cast<size_t>(i) >= at.op.operands.size()
             ? nullptr
             : &operand(at, static_cast<size_t>(i));
}

/// Whether an update takes the parts of its block that belong together, with the complete gradient.
bool Walk::takesGradients(const At &at) {
  const Value *state = operandOf(at, "state"), *g = operandOf(at, "g");
  if (at.role.step < 0 || state->kind != Value::Step ||
      state->step->training.finished != at.role.step)
    return refuse(at, "is before the end of the step");
  for (const char *name : {"g", "master", "m", "v", "weight"})
    if (const Value *value = operandOf(at, name);
        value && (!value->isBlock() || value->block->block != at.op.getInt(AttrKey::block) ||
                  value->block->axes != g->block->axes))
      return refuse(at, "operand {} is a different block, or a different part of it", name);
  for (size_t i = 0; i < g->block->params.size(); ++i) {
    State like = g->block->params[i];
    size_t param = paramsOf(g->block->block)[i];
    checkComplete(at, like, param);
    std::erase_if(like.edit().places,
                  [](const Place &place) { return place.kind == Place::Summed; });
    for (Place &place : like.edit().places)
      place.isSummed = false;
    if (like->places != operandOf(at, "master")->block->params[i]->places)
      refuse(at, "takes gradient and weight of '{}' with different placements",
             plan_.params[param].name);
  }
  return true;
}

Values Walk::followOptimizer(const At &at) {
  if (!takesGradients(at) || (at.op.kind == OpKind::Muon && !hasWholeMatrices(at)))
    return {};
  const BlockState &master = *operandOf(at, "master")->block;
  Values made;
  std::string_view names = opInfo(at.op).results;
  for (ValueId result : at.op.results) {
    std::string_view name = takeUntil(names, ' ');
    BlockState block = master;
    DType dtype = typeOf(at, result).dtype;
    for (size_t i = 0; i < block.params.size(); ++i) {
      TermId &param = block.params[i].term;
      Term term = {Term::Updated,       at.op.kind, 0, goalOf_[paramsOf(master.block)[i]], {},
                   {terms_.bare(param)}};
      for (const char *moment : {"m", "v"})
        if (const Value *value = operandOf(at, moment))
          term.operands.push_back(value->block->params[i].term);
      term.result = name == "m" ? 1 : name == "v" ? 2 : 0;
      param = terms_.of(term);
      if (term.result == 0 && dtype != DType::U16)
        param = terms_.rounded(dtype, param);
    }
    made.push_back(std::move(block));
  }
  return made;
}

/// Checks that the next steps begin with the state that the specified update computes.
bool Walk::endStep(RoleWalk &walk) {
  const Role &role = *walk.role;
  auto has = [&](CellKind kind, int32_t of) { return findCell(role, kind, of) != kNone; };
  for (const auto &[kind, terms] : goals_.steps[static_cast<size_t>(walk.step)].reported)
    if (isReported(kind) && findCell(role, kind) == kNone)
      return refuse("role '{}' has no cell of kind '{}', which the model reports", role.name,
                    cellKindInfo(kind).word);
  for (size_t c = 0; c < role.cells.size(); ++c) {
    const Cell &cell = role.cells[c];
    const Value &value = walk.cells[c][0];
    if (cell.kind == CellKind::Step &&
        (value.kind != Value::Step || value.step->training.finished != walk.step))
      return refuse("role '{}': the step does not end", role.name);
    if (isReported(cell.kind) && !isOfAll(walk, cell.kind, value))
      return refuse("role '{}': cell '@{}' ends a step with other figures than the model's",
                    role.name, cell.name);
    if (cell.kind == CellKind::ExpertBias && !(value == initial(cell, walk.step + 1)))
      return refuse("role '{}': cell '@{}' ends a step without its update", role.name, cell.name);
    std::optional<Term::Kind> kind = keptKind(cell.kind);
    bool isOther = !isExact(cell) && has(CellKind::Master, cell.of);
    isOther |= cell.kind == CellKind::Weight && has(CellKind::WeightShard, cell.of);
    if (!kind || isOther)
      continue;
    Value needed = initial(cell, walk.step + 1);
    if (needed.isBlock() && !hasNeeded(cell, value, needed))
      return refuse("role '{}': cell '@{}' ends a step with other values than the model's",
                    role.name, cell.name);
  }
  return true;
}

} // namespace shardc::plan::spec
