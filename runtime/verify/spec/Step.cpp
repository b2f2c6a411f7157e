// Handles blocks of parameters, the sums of a step, and the optimizer.
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
namespace {

const Block &blockOf(const Plan &plan, int64_t param) {
  return plan.blocks[static_cast<size_t>(plan.params[static_cast<size_t>(param)].block)];
}

/// Whether the loss scale changes from step to step.
bool scalesLosses(const Job &job) { return scalingOf(job) == Scaling::Dynamic; }

} // namespace

int64_t Walk::extentOf(const Role &role, uint16_t axis) const {
  for (const AxisRange &range : role.where)
    if (range.axis == axis)
      return range.end - range.begin;
  return plan_.mesh[axis].size;
}

/// The axes along which a buffer of `numel` elements divides the block; none if the size does not
/// fit.
std::optional<std::vector<uint16_t>> Walk::divided(const Block &block, int64_t numel) const {
  std::optional<BlockPart> part = partOf(block, numel);
  if (!part)
    return std::nullopt;
  return compute_.mesh().axesOf(part->group);
}

/// The parameter's index in the specification; -1 if the specification lacks it.
int64_t Walk::goalOf(size_t param) const {
  return isSpecification_ ? static_cast<int64_t>(param) : goalOf_[param];
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
    for (uint16_t axis : compute_.mesh().axesOf(split.group)) {
      state.put({axis, Place::Shard, false, false, outer});
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
    const Plan &model = isSpecification_ ? plan_ : *goals_.plan;
    terms_.setShape(term, model.params[static_cast<size_t>(goal)].wholeType());
    return term;
  }
  OpKind op = optimizerInfo(*optimizerOf(*goals_.plan, blockOf(*goals_.plan, goal))).op;
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

/// Whether a cell stores numbers as the optimizer computes them, in the type that the job chooses.
bool isExact(const Cell &cell) {
  return cell.kind != CellKind::Weight && cell.kind != CellKind::WeightShard;
}

} // namespace

/// A cell's content at the start of a run.
Value Walk::initial(const RoleWalk &, const Cell &cell) {
  if (cell.kind == CellKind::Feed || cell.kind == CellKind::EvalFeed || cell.kind == CellKind::Stop)
    return Value::ofKind(Value::Host);
  if (cell.kind == CellKind::Step)
    return Value::of(StepState());
  auto begun = static_cast<int64_t>(isSpecification_ ? goals_.steps.size() : 0);
  if (cell.kind == CellKind::Param) {
    auto index = static_cast<size_t>(cell.of);
    return Value::of(
        paramState(index, inType(cell.type.dtype, parameter(Term::Parameter, index, begun))));
  }
  if (cell.kind == CellKind::ExpertBias) {
    State bias;
    bias.term = terms_.of(Term::Kept, static_cast<int64_t>(cell.kind));
    bias.edit().whole = cell.type;
    return Value::of(std::move(bias));
  }
  if (cell.kind == CellKind::RouterLosses || cell.kind == CellKind::PredictionLosses ||
      cell.kind == CellKind::PreferenceSums)
    return Value::ofKind(Value::Unfollowed);
  if (cell.kind == CellKind::Amax || cell.kind == CellKind::AmaxSeen ||
      cell.kind == CellKind::AmaxHistory || cell.kind == CellKind::WeightScales)
    return initialMaxima(cell);
  std::optional<Term::Kind> kind = keptKind(cell.kind);
  if (!kind)
    return Value();
  const Block &block = plan_.blocks[static_cast<size_t>(cell.of)];
  std::optional<std::vector<uint16_t>> axes = divided(block, cell.type.numel());
  if (!axes)
    return Value();
  BlockState state;
  state.block = cell.of, state.axes = *axes;
  for (size_t p : paramsOf_[static_cast<size_t>(cell.of)]) {
    TermId term = parameter(*kind, p, begun);
    state.params.push_back(paramState(p, isExact(cell) ? term : inType(cell.type.dtype, term)));
  }
  return Value::of(std::move(state));
}

bool Walk::readStep(Goals &goals) {
  goals.plan = &plan_;
  if (plan_.roles.size() != 1 || plan_.level != Level::Logical || !optimizerOf(plan_.job))
    return refuse("is not a logical plan of one role with an optimizer");
  const Role &role = plan_.roles[0];
  Goals::Step step;
  dataAxes_.clear(); // the specification has a single rank
  for (size_t p = 0; p < plan_.params.size(); ++p)
    goals.params.emplace(plan_.params[p].name, static_cast<int64_t>(p));
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
    auto count = [&](const std::vector<ProgramNode> &nodes, const auto &self) -> void {
      for (const ProgramNode &node : nodes) {
        if (node.kind == ProgramNode::Run && node.segment == s)
          (isEval ? goals.evalMicrobatches : goals.microbatches) = node.count;
        self(node.children, self);
      }
    };
    count(role.program, count);
  }
  if (cells.empty())
    return refuse("has no training segment");
  step.gradients.resize(plan_.params.size());
  for (size_t c = 0; c < role.cells.size(); ++c)
    if (const Value &value = cells[c][0];
        value.isOne() && (role.cells[c].kind == CellKind::ParamGradient ||
                          role.cells[c].kind == CellKind::ExpertLoad)) {
      std::vector<TermId> &summands = role.cells[c].kind == CellKind::ExpertLoad
                                          ? step.loads
                                          : step.gradients[static_cast<size_t>(role.cells[c].of)];
      for (const Contribution &each : contributionsOf(terms_, value.state))
        summands.push_back(each.term);
      std::ranges::sort(summands);
    }
  step.evaluatedScales = scalesOfEvaluation();
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
    walk.cells.emplace_back(static_cast<size_t>(cell.slots), initial(walk, cell));
  for (bool hasMoved = true; !walk.isDone() && hasMoved;) {
    hasMoved = false;
    if (!advance(walk, hasMoved))
      return std::nullopt;
  }
  std::vector<std::pair<TermId, TermId>> losses;
  for (const Values &cell : walk.cells)
    if (cell[0].kind == Value::Step)
      for (const auto &[loss, tokens] : cell[0].step->sums(isEval).losses)
        losses.emplace_back(loss.term, tokens.term);
  cells = std::move(walk.cells);
  return losses;
}

/// Checks that parameters exist in the model, and that they have its initial values and learning
/// rates.
bool Walk::checkTables() {
  for (size_t p = 0; p < plan_.params.size(); ++p) {
    const Param &param = plan_.params[p];
    int64_t goal = goalOf(p);
    if (goal < 0)
      return refuse(fmt::format("the model has no parameter '{}'", param.name));
    const Param &meant = goals_.plan->params[static_cast<size_t>(goal)];
    if (param.init != meant.init || param.initStd != meant.initStd ||
        param.isStacked() != meant.isStacked())
      return refuse(fmt::format("parameter '{}' is not initialised as in the model", param.name));
    if (param.lrMult != meant.lrMult || param.wdMult != meant.wdMult ||
        param.isDecoupled != meant.isDecoupled ||
        isTrained(plan_, param) != isTrained(*goals_.plan, meant))
      return refuse(fmt::format("parameter '{}' is not trained as in the model", param.name));
    if (optimizerOf(plan_, blockOf(plan_, static_cast<int64_t>(p))) !=
            optimizerOf(*goals_.plan, blockOf(*goals_.plan, goal)) ||
        param.turns != meant.turns)
      return refuse(fmt::format("parameter '{}' is not updated as in the model", param.name));
    std::optional<Optimizer> optimizer =
        optimizerOf(plan_, blockOf(plan_, static_cast<int64_t>(p)));
    if (int dims = param.rowDim() + 2; optimizer && needsMatrices(*optimizer) &&
                                       param.type.rank != dims && isTrained(plan_, param))
      return refuse(fmt::format("parameter '{}' has {} dimensions; its optimizer needs {}",
                                param.name, param.type.rank, dims));
    if (!(param.wholeType() == meant.wholeType()))
      return refuse(
          fmt::format("parameter '{}' does not have the same type as in the model", param.name));
  }
  return plan_.params.size() == goals_.params.size() ||
         refuse(fmt::format("has {} parameters, the model has {}", plan_.params.size(),
                            goals_.params.size()));
}

/// Checks attributes that must equal the job's options.
bool Walk::checkHyper(const At &at) {
  const Job &job = goals_.plan->job;
  auto differs = [&](AttrKey key, double needed) {
    double found = attrInfo(key).type == AttrInfo::Float ? at.op.getFloat(key)
                                                         : static_cast<double>(at.op.getInt(key));
    if (found == needed)
      return false;
    refuse(at, fmt::format("has {} = {}; the job needs {}", attrInfo(key).name, found, needed));
    return true;
  };
#define HYPER(op_, attribute, value)                                                               \
  if (at.op.kind == OpKind::op_ && differs(AttrKey::attribute, static_cast<double>(value)))        \
    return false;
#include "runtime/verify/spec/Spec.def"
  if (!opInfo(at.op).isOptimizer())
    return true;
  int64_t block = at.op.getInt(AttrKey::block);
  if (block < 0 || block >= static_cast<int64_t>(plan_.blocks.size()))
    return refuse(at, "names no block");
  std::optional<Optimizer> optimizer = optimizerOf(plan_, plan_.blocks[static_cast<size_t>(block)]);
  if (!optimizer || optimizerInfo(*optimizer).op != at.op.kind)
    return refuse(at, "is not the optimizer of the block");
  for (const Scalar &scalar : scalarsOf(*optimizer, job))
    if (differs(scalar.key, scalar.value))
      return false;
  bool isConstant = job.scheduler.weightDecayIncrStyle == Job::WeightDecayStyle::Constant;
  double decay = !isConstant                         ? 0
                 : job.scheduler.endWeightDecay >= 0 ? job.scheduler.endWeightDecay
                                                     : job.optimizer.weightDecay;
  return !differs(AttrKey::weight_decay, decay) &&
         !differs(AttrKey::decoupled, job.optimizer.decoupledWeightDecay ? 1 : 0);
}

std::optional<Walk::Values> Walk::followStep(const At &at) {
  static constexpr std::pair<SumRole, Rule> kRules[] = {
      {SumRole::BeginsStep, &Walk::beginStep},     {SumRole::BeginsEval, &Walk::beginEval},
      {SumRole::AddsLosses, &Walk::followLossAdd}, {SumRole::AddsEvalLosses, &Walk::followLossAdd},
      {SumRole::Norm, &Walk::followSquares},       {SumRole::PacksStep, &Walk::followSumsPack},
      {SumRole::PacksEval, &Walk::followSumsPack}, {SumRole::FinishesStep, &Walk::finishSums},
      {SumRole::FinishesEval, &Walk::finishSums},  {SumRole::Optimizes, &Walk::followOptimizer},
      {SumRole::Balances, &Walk::updateBias},      {SumRole::EndsMaxima, &Walk::endMaxima}};
  auto rule = std::ranges::find(kRules, opInfo(at.op).sum, &std::pair<SumRole, Rule>::first);
  if (rule == std::end(kRules))
    return std::nullopt;
  auto steps = static_cast<int64_t>(goals_.steps.size());
  if (!isSpecification_ && (at.role.step < 0 || at.role.step >= steps))
    return refuse(at, "is in no step of the model");
  return (this->*rule->second)(at);
}

std::optional<Walk::Values> Walk::beginStep(const At &at) {
  auto isSame = [](const Attr &a, const Attr &b) { return a.key == b.key && a.i == b.i; };
  if (!isSpecification_ &&
      (!goals_.stepBegin || !std::ranges::equal(at.op.attrs, goals_.stepBegin->attrs, isSame)))
    return refuse(at, "has a schedule that differs from the model's");
  StepState step;
  step.training.begun = at.role.step;
  return Values{Value::of(std::move(step))};
}

std::optional<Walk::Values> Walk::beginEval(const At &at) {
  if (operand(at, 0).kind != Value::Step)
    return refuse(at, "takes a value that is not a step state");
  StepState step = *operand(at, 0).step;
  step.evaluation = LossSums();
  step.evaluation.begun = at.role.step;
  return Values{Value::of(std::move(step))};
}

/// The bias of the next step, which changes by the load of all microbatches and samples.
std::optional<Walk::Values> Walk::updateBias(const At &at) {
  const Value &bias = operand(at, 0), &load = operand(at, 1);
  if (!checkHyper(at))
    return std::nullopt;
  int64_t base = at.role.step * kStep;
  std::vector<Contribution> meant;
  for (TermId term : goalsOf(at).loads)
    meant.push_back({term, base, base + goals_.microbatches - 1});
  bool isWhole = load.isOne() && load.state->places.size() == dataAxes_.size() &&
                 load.state->multiple.isOne() && contributionsOf(terms_, load.state) == meant;
  for (uint16_t axis : dataAxes_)
    isWhole = isWhole && load.state.at(axis) && load.state.at(axis)->kind == Place::Summed;
  if (!isWhole)
    return refuse(at, "does not take the load of all microbatches and samples");
  if (!bias.isOne() ||
      bias.state.term != terms_.of(Term::Kept, static_cast<int64_t>(CellKind::ExpertBias)))
    return refuse(at, "takes what is no bias of experts");
  return Values{bias};
}

/// Parameters as they begin, by the parameter table.
std::optional<Walk::Values> Walk::followInit(const At &at) {
  auto b = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  if (!checkHyper(at))
    return std::nullopt;
  Values made;
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    const Type &type = typeOf(at, at.op.results[r]);
    std::optional<std::vector<uint16_t>> axes;
    if (b >= 0 && b < static_cast<int32_t>(plan_.blocks.size()))
      axes = divided(plan_.blocks[static_cast<size_t>(b)], type.numel());
    if (!axes)
      return refuse(at, "makes no part of its block");
    BlockState state;
    state.block = b, state.axes = *axes;
    for (size_t p : paramsOf_[static_cast<size_t>(b)]) {
      TermId term = parameter(Term::Parameter, p, 0);
      bool isExact = r == resultIndex<OpKind::InitBlock>("remainder");
      state.params.push_back(paramState(p, isExact ? term : inType(type.dtype, term)));
    }
    made.push_back(Value::of(std::move(state)));
  }
  return made;
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
      return refuse(fmt::format("role '{}' waits for another one in its start", walk.role->name));
    if (!advance(walk, hasMoved))
      return false;
  }
  for (size_t c = 0; c < loaded.size(); ++c) {
    const Cell &cell = walk.role->cells[c];
    std::optional<Term::Kind> kind = keptKind(cell.kind);
    const Value &needed = loaded[c][0], &found = walk.cells[c][0];
    if (cell.kind == CellKind::WeightScales && !hasScales(*walk.role, found, *needed.maxima))
      return refuse(fmt::format("role '{}': cell '@{}' begins without scales of frozen weights",
                                walk.role->name, cell.name));
    bool isMoment = kind && *kind != Term::Parameter;
    if (kind && found.kind == Value::Unknown)
      missing.push_back(c);
    if (!kind || !needed.isBlock() || (isMoment && isZero(found)) || found.kind == Value::Unknown)
      continue;
    auto isSame = [&](const State &a, const State &b) {
      return (isExact(cell) ? terms_.bare(a.term) == terms_.bare(b.term) : a.term == b.term) &&
             a->places == b->places;
    };
    bool isBegun = found.isBlock() && found.block->block == needed.block->block &&
                   found.block->axes == needed.block->axes &&
                   std::ranges::equal(found.block->params, needed.block->params, isSame);
    if (!isBegun)
      return refuse(fmt::format("role '{}': cell '@{}' begins with other values than the model's",
                                walk.role->name, cell.name));
  }
  walk.cells = loaded;
  for (size_t c : missing) // steps must write them before they read them
    walk.cells[c] = Values(loaded[c].size());
  return true;
}

std::optional<Walk::Values> Walk::finishSums(const At &at) {
  bool isEval = opInfo(at.op).sum == SumRole::FinishesEval;
  const Value &state = operand(at, 0), &reduced = operand(at, 1);
  bool isOfOne =
      std::ranges::all_of(plan_.mesh, [](const MeshAxis &axis) { return axis.size == 1; });
  bool isSummed = reduced.kind == Value::Reduced || (reduced.kind == Value::Packed && isOfOne);
  if (!isSummed || state.kind != Value::Step || !(*reduced.step == *state.step) ||
      (isEval ? reduced.op != nullptr
              : reduced.op == nullptr || operand(at, 2).list != reduced.list))
    return refuse(at, "takes other sums than those that it ends");
  constexpr AttrKey kOwn = AttrKey::norm_replicated;
  if (!isEval && at.op.getBool(kOwn) != reduced.op->getBool(kOwn))
    return refuse(at, "takes other squares for the norm than ranks have packed");
  if (!checkHyper(at))
    return std::nullopt;
  StepState step = *state.step;
  step.sums(isEval).finished = at.role.step;
  return Values{Value::of(std::move(step))};
}

std::optional<Walk::Values> Walk::followLossAdd(const At &at) {
  if (operand(at, 0).kind != Value::Step || !operand(at, 1).isOne() || !operand(at, 2).isOne())
    return refuse(at, "adds values that are not losses");
  StepState step = *operand(at, 0).step;
  LossSums &sums = step.sums(opInfo(at.op).sum == SumRole::AddsEvalLosses);
  State loss = operand(at, 1).state, tokens = operand(at, 2).state;
  int64_t number = loss.microbatch;
  if (number != tokens.microbatch || loss.isSum() || tokens.isSum())
    return refuse(at, "adds losses and tokens of different microbatches");
  loss.microbatch = tokens.microbatch = -1;
  bool isAdded = false;
  for (size_t i = 0; i < sums.losses.size() && !isAdded; ++i)
    if (sums.losses[i] == std::pair(loss, tokens) && sums.microbatches[i].second == number - 1)
      isAdded = true, sums.microbatches[i].second = number;
  if (!isAdded) {
    sums.losses.emplace_back(std::move(loss), std::move(tokens));
    sums.microbatches.emplace_back(number, number);
  }
  return Values{Value::of(std::move(step))};
}

std::optional<Walk::Values> Walk::followSquares(const At &at) {
  Value squares = Value::ofKind(Value::Squares);
  squares.op = &at.op;
  Values list;
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    list.push_back(operand(at, i));
  squares.list = std::make_shared<const Values>(std::move(list));
  return Values{squares};
}

std::optional<Walk::Values> Walk::followSumsPack(const At &at) {
  bool isEval = opInfo(at.op).sum == SumRole::PacksEval;
  const Value &step = operand(at, 0);
  Value packed = Value::ofKind(Value::Packed);
  if (step.kind != Value::Step)
    return refuse(at, "packs a value that is not a step state");
  if (!isSpecification_ && !checkLosses(at, *step.step, isEval))
    return std::nullopt;
  if (!isEval) {
    const Value &squares = operand(at, 1);
    if (squares.kind != Value::Squares || squares.op == nullptr)
      return refuse(at, "packs a value that is not a sum of squares");
    if (!checkNorm(at, squares))
      return std::nullopt;
    if (operand(at, operandIndex<OpKind::StepPack>("stop")).kind != Value::Host)
      return refuse(at, "takes its stop flag from what the host does not write");
    packed.op = &at.op, packed.list = squares.list;
  }
  packed.step = step.step;
  return Values{packed};
}

/// Checks that each microbatch's losses are added once, and that as many ranks have equal losses as
/// the op says.
bool Walk::checkLosses(const At &at, const StepState &step, bool isEval) {
  const LossSums &sums = step.sums(isEval);
  int64_t base = at.role.step * kStep;
  if (sums.begun != at.role.step)
    return refuse(at, "takes sums that have not begun");
  if (sums.losses.empty()) // another stage has them
    return true;
  ++rolesWithLosses_[{isEval, at.role.step}];
  auto at0 = static_cast<size_t>(at.role.step + (isEval ? 1 : 0));
  if (at0 >= goals_.steps.size())
    return refuse(at, "ends an evaluation, which the model does not have");
  const auto &meant = isEval ? goals_.steps[at0].evaluated : goals_.steps[at0].losses;
  std::map<std::pair<TermId, TermId>, int64_t> next;
  for (const auto &goal : meant)
    next[goal] = base;
  for (size_t i = 0; i < sums.losses.size(); ++i) {
    const auto &[loss, tokens] = sums.losses[i];
    auto found = next.find({loss.term, tokens.term});
    if (found == next.end())
      return refuse(at, "takes losses that the model does not have");
    if (found->second != sums.microbatches[i].first)
      return refuse(at, "takes losses of a microbatch twice, or not at all");
    found->second = sums.microbatches[i].second + 1;
    int64_t have = copiesOf(at, loss, tokens), copies = at.op.getInt(AttrKey::loss_copies);
    if (have == 0)
      return false;
    if (have != copies && !isEval) // in evaluations, copies of losses and tokens cancel
      return refuse(at, fmt::format("has {} copies of the losses, not {}", have, copies));
  }
  int64_t count = isEval ? goals_.evalMicrobatches : goals_.microbatches;
  for (auto &[goal, end] : next)
    if (end != base + count)
      return refuse(
          at, fmt::format("takes losses of {} microbatches, the model has {}", end - base, count));
  return true;
}

/// The number of the role's ranks that have equal losses; 0 if unknown.
int64_t Walk::copiesOf(const At &at, const State &loss, const State &tokens) {
  if (loss->order.kind != Order::Dims || loss->pooled != 0 || tokens->pooled != 0 ||
      !loss->multiple.isOne() || !tokens->multiple.isOne())
    return refuse(at, "takes multiples of losses"), 0;
  int64_t have = 1;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis) {
    if (extentOf(*at.role.role, axis) == 1)
      continue;
    const Place *of = loss.at(axis), *count = tokens.at(axis);
    bool isData = std::ranges::find(dataAxes_, axis) != dataAxes_.end();
    if ((of == nullptr) != (count == nullptr))
      return refuse(at, "takes losses and numbers of different tokens"), 0;
    bool isKnown = isData ? of && of->kind == Place::Instance && count->kind == Place::Instance
                          : !of || (of->kind == Place::Shard && count->kind == Place::Part);
    if (!isKnown)
      return refuse(at, "takes losses with an unknown placement"), 0;
    have *= of == nullptr ? extentOf(*at.role.role, axis) : 1;
  }
  return have;
}

/// Axes along which ranks have other parts of the parameter, or the same parts by design.
std::set<uint16_t> Walk::axesOfParam(size_t index) const {
  std::set<uint16_t> axes;
  auto add = [&](int group) {
    for (uint16_t axis : compute_.mesh().axesOf(group))
      axes.insert(axis);
  };
  for (const Split &split : plan_.params[index].splits)
    add(split.group);
  std::ranges::for_each(plan_.params[index].copies, add);
  return axes;
}

/// Whether the state is the parameter's gradient, summed over all microbatches and samples.
bool Walk::isComplete(const At &at, const State &state, size_t param) {
  const std::string &name = plan_.params[param].name;
  auto goal = static_cast<size_t>(goalOf(param));
  for (uint16_t axis : dataAxes_) {
    const Place *place = state.at(axis);
    if (place == nullptr || (place->kind != Place::Summed && place->kind != Place::OfExperts))
      return refuse(at, fmt::format("takes a gradient of '{}' that is not summed over {}", name,
                                    plan_.mesh[axis].name));
  }
  for (const Place &place : state->places)
    if (place.kind != Place::Shard && place.kind != Place::Summed && place.kind != Place::OfExperts)
      return refuse(at, fmt::format("takes a gradient of '{}' that is not complete along {}", name,
                                    compute_.mesh().name(place.axis)));
  if (!state->cover.isAll() || state->order.kind != Order::Dims || state->pooled != 0)
    return refuse(at, fmt::format("takes only a part of the gradient of '{}'", name));
  Multiple needed;
  const Job &job = goals_.plan->job;
  if (job.ddp.averageInCollective && !job.model.calculatePerTokenLoss)
    for (GroupKind kind : {GroupKind::Data, GroupKind::Context})
      for (uint16_t axis : compute_.mesh().axesOf(kind)) // ranks have different tokens
        needed.divide(plan_.mesh[axis].size);
  if (!(state->multiple == needed))
    return refuse(at, fmt::format("takes {}/{} of the gradient of '{}', not {}/{}",
                                  state->multiple.over, state->multiple.under, name, needed.over,
                                  needed.under));
  std::vector<Contribution> found = contributionsOf(terms_, state), meant;
  int64_t base = at.role.step * kStep;
  for (TermId term : goalsOf(at).gradients[goal])
    meant.push_back({term, base, base + goals_.microbatches - 1});
  std::ranges::sort(meant);
  if (found == meant)
    return true;
  bool areOfModel = std::ranges::all_of(found, [&](const Contribution &each) {
    return std::ranges::binary_search(goalsOf(at).gradients[goal], each.term);
  });
  return refuse(
      at, fmt::format("takes {} the gradient of '{}'",
                      areOfModel ? "contributions of other microbatches to" : "something else than",
                      name));
}

/// Checks one of the gradients that a norm takes. Along these axes, ranks have different parts of
/// it.
bool Walk::checkNormPart(const At &at, const State &gradient, size_t index,
                         const std::vector<uint16_t> &axes, int64_t copies) {
  const Param &param = plan_.params[index];
  if (!isComplete(at, gradient, index))
    return false;
  std::set<uint16_t> divided = axesOfParam(index);
  divided.insert(axes.begin(), axes.end());
  if (at.op.getBool(AttrKey::norm_replicated))
    return (divided.empty() && copies == 1 && plan_.roles.size() == 1) ||
           refuse(at, fmt::format("takes a part of the squares of '{}' for all", param.name));
  int64_t have = 1;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis)
    have *= divided.contains(axis) ? 1 : extentOf(*at.role.role, axis);
  return have == copies ||
         refuse(at, fmt::format("has '{}' of {} ranks, but divides its squares by {}", param.name,
                                have, copies));
}

/// Checks that the norm has the gradient of each parameter once.
bool Walk::checkNorm(const At &at, const Value &squares) {
  std::multiset<size_t> found, meant;
  for (size_t i = 0; i < squares.list->size(); ++i) {
    const Value *value = &(*squares.list)[i];
    bool isOfAll = value->kind == Value::Squares && value->list && value->list->size() == 1;
    if (isOfAll) // squares of another op, which knows no copies of parameters
      value = &value->list->front();
    int64_t copies = i < squares.op->blocks.size() ? squares.op->blocks[i].copies : 1;
    if (value->isBlock()) {
      const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(value->block->block)];
      for (size_t p = 0; p < params.size(); ++p) {
        found.insert(params[p]);
        if (!checkNormPart(at, value->block->params[p], params[p], value->block->axes, copies))
          return false;
      }
      continue;
    }
    size_t param = value->isOne() ? paramOf(at, value->state) : plan_.params.size();
    if (param == plan_.params.size())
      return refuse(at, "has squares of a value that is not a gradient");
    found.insert(param);
    if (isOfAll && !plan_.params[param].copies.empty())
      return refuse(
          at, fmt::format("takes the squares of all copies of '{}'", plan_.params[param].name));
    if (!checkNormPart(at, value->state, param, {}, copies))
      return false;
  }
  for (size_t p = 0; p < plan_.params.size(); ++p)
    if (countsNorm(at.role, p))
      meant.insert(p);
  return found == meant || refuse(at, "does not have the gradient of each parameter once");
}

/// The parameter whose gradient this is; the number of parameters if there is none.
size_t Walk::paramOf(const At &at, const State &gradient) const {
  std::vector<TermId> terms;
  for (const Contribution &each : contributionsOf(terms_, gradient))
    terms.push_back(each.term);
  for (size_t p = 0; p < plan_.params.size(); ++p)
    if (!terms.empty() && goalsOf(at).gradients[static_cast<size_t>(goalOf(p))] == terms)
      return p;
  return plan_.params.size();
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
         goals_.isTrained(goalOf(param));
}

/// Whether an update takes the parts of its block that belong together, with the complete gradient.
bool Walk::takesGradients(const At &at) {
  const OpInfo &info = opInfo(at.op);
  auto named = [&](std::string_view name) -> const Value * {
    int i = positionOf(info.operands, name);
    return i < 0 || static_cast<size_t>(i) >= at.op.operands.size()
               ? nullptr
               : &operand(at, static_cast<size_t>(i));
  };
  const Value *state = named("state"), *g = named("g"), *master = named("master");
  if (at.role.step < 0 || state->kind != Value::Step ||
      state->step->training.finished != at.role.step)
    return refuse(at, "is before the end of the step");
  auto block = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  for (const char *name : {"g", "master", "m", "v", "weight"})
    if (const Value *value = named(name);
        value &&
        (!value->isBlock() || value->block->block != block || value->block->axes != g->block->axes))
      return refuse(
          at, fmt::format("operand {} is a different block, or a different part of it", name));
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(block)];
  for (size_t i = 0; i < params.size(); ++i) {
    State like = g->block->params[i];
    if (!isComplete(at, like, params[i]))
      return false;
    std::erase_if(like.edit().places,
                  [](const Place &place) { return place.kind == Place::Summed; });
    for (Place &place : like.edit().places)
      if (place.kind == Place::OfExperts)
        place = {place.axis, Place::Shard, false, false, place.outer};
    if (like->places != master->block->params[i]->places)
      return refuse(at, fmt::format("takes gradient and weight of '{}' with different placements",
                                    plan_.params[params[i]].name));
  }
  return true;
}

std::optional<Walk::Values> Walk::followOptimizer(const At &at) {
  if (!checkHyper(at) || !takesGradients(at) ||
      (at.op.kind == OpKind::Muon && !hasWholeMatrices(at)))
    return std::nullopt;
  const OpInfo &info = opInfo(at.op);
  const BlockState &master =
      *operand(at, static_cast<size_t>(positionOf(info.operands, "master"))).block;
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(master.block)];
  std::vector<BlockState> made(at.op.results.size(), master);
  for (size_t i = 0; i < params.size(); ++i) {
    Term term = {Term::Updated,     at.op.kind, 0,
                 goalOf(params[i]), {},         {terms_.bare(master.params[i].term)}};
    for (const char *name : {"m", "v"})
      if (int moment = positionOf(info.operands, name); moment >= 0)
        term.operands.push_back(operand(at, static_cast<size_t>(moment)).block->params[i].term);
    for (size_t r = 0; r < made.size(); ++r) {
      std::string_view names = info.results;
      for (size_t skip = 0; skip < r; ++skip)
        takeUntil(names, ' ');
      std::string_view name = takeUntil(names, ' ');
      term.result = name == "m" ? 1 : name == "v" ? 2 : 0;
      TermId updated = terms_.of(term);
      if (term.result == 0 && typeOf(at, at.op.results[r]).dtype != DType::U16)
        updated = terms_.rounded(typeOf(at, at.op.results[r]).dtype, updated);
      made[r].params[i].term = updated;
    }
  }
  Values values;
  for (BlockState &each : made)
    values.push_back(Value::of(std::move(each)));
  return values;
}

/// Checks that the next steps begin with the state that the specified update computes.
bool Walk::endStep(RoleWalk &walk) {
  const Role &role = *walk.role;
  auto has = [&](CellKind kind, int32_t of) {
    return std::ranges::any_of(
        role.cells, [&](const Cell &cell) { return cell.kind == kind && cell.of == of; });
  };
  for (size_t c = 0; c < role.cells.size(); ++c) {
    const Cell &cell = role.cells[c];
    const Value &value = walk.cells[c][0];
    if (cell.kind == CellKind::Step &&
        (value.kind != Value::Step || value.step->training.finished != walk.step))
      return refuse(fmt::format("role '{}': the step does not end", role.name));
    std::optional<Term::Kind> kind = keptKind(cell.kind);
    bool isOther = cell.kind == CellKind::Weight &&
                   (has(CellKind::Master, cell.of) || has(CellKind::WeightShard, cell.of));
    isOther |= cell.kind == CellKind::WeightShard && has(CellKind::Master, cell.of);
    if (!kind || isOther)
      continue;
    const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(cell.of)];
    if (!value.isBlock() || value.block->block != cell.of)
      return refuse(
          fmt::format("role '{}': cell '@{}' no longer holds its block", role.name, cell.name));
    for (size_t i = 0; i < params.size(); ++i) {
      TermId needed = parameter(*kind, params[i], walk.step + 1);
      bool isExactHere = isExact(cell);
      TermId found = value.block->params[i].term;
      if (isExactHere ? terms_.bare(found) != needed : found != inType(cell.type.dtype, needed))
        return refuse(fmt::format("role '{}': cell '@{}' does not have the new '{}'", role.name,
                                  cell.name, plan_.params[params[i]].name));
    }
  }
  return true;
}

} // namespace shardc::plan::spec
