// Walks the forward ops from the last to the first, applies the rule of each, and accumulates the
// gradients of values with several users.
#include "compiler/passes/Gradients.h"

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"
#include "runtime/plan/JobFacts.h"

namespace shardc::passes {
namespace {

using Rule = void (*)(Gradients &, const Op &);

void endGradient(Gradients &, const Op &) {}

/// The value of the op, or the gradient of one, that a backward op names; kNone without it.
ValueId valueNamed(const Gradients &gradients, const Op &op, std::string_view name) {
  const plan::OpInfo &info = plan::opInfo(op);
  if (auto at = static_cast<size_t>(plan::positionOf(info.operands, name)); at < op.operands.size())
    return op.operands[at];
  if (auto at = static_cast<size_t>(plan::positionOf(info.results, name)); at < op.results.size())
    return op.results[at];
  return name.starts_with('d') ? gradients.of(valueNamed(gradients, op, name.substr(1))) : kNone;
}

/// The rule of a DERIVED row.
template <OpKind kind> void derive(Gradients &gradients, const Op &op) {
  const plan::OpInfo &info = plan::opInfo(kind);
  const bool isLoss = plan::opInfo(op).lossGradient == kind;
  std::vector<ValueId> operands, of;
  for (std::string_view names = info.operands; !names.empty();) {
    std::string_view name = plan::takeUntil(names, ' ');
    if (isLoss && (name == "n" || name == "state?"))
      break; // start() appends them
    ValueId value = valueNamed(gradients, op, name.substr(0, name.find('?')));
    if (value != kNone)
      operands.push_back(isLoss && name == "mask" ? gradients.weightsOf(op, value) : value);
    else if (name.starts_with('d'))
      return; // a result without a gradient
    else
      SHARDC_CHECK(name.ends_with('?'), "operand '{}' is neither an operand nor a result of the op",
                   name);
  }
  Op back = isLoss ? gradients.start(operands, /*isAppended=*/true) : gradients.makeOp(kind, {});
  if (!isLoss)
    back.operands = operands;
  for (std::string_view names = info.results; !names.empty();)
    if (std::string_view name = plan::takeUntil(names, ' '); name.starts_with('d')) {
      ValueId value = valueNamed(gradients, op, name.substr(1, name.find('?') - 1));
      if (value != kNone)
        of.push_back(value);
      else
        SHARDC_CHECK(name.ends_with('?'), "result '{}' is the gradient of no operand", name);
    }
  for (const plan::Attr &attr : op.attrs)
    if (info.attrs.has(attr.key))
      back.attrs.push_back(attr);
  if (info.takesIndex())
    back.group = op.group;
  gradients.emitForEach(of, std::move(back));
}

/// By op; null: only passes after the backward pass make it.
constexpr std::array<Rule, plan::kOpCount> rulesOfOps() {
  std::array<Rule, plan::kOpCount> rules{};
  auto add = [&](OpKind op, Rule rule) {
    if (std::exchange(rules[static_cast<size_t>(op)], rule) != nullptr)
      throw "an op of Ops.def has two rows in BackwardRules.def";
  };
#define RULE(op) add(OpKind::op, back##op);
#define DERIVED(op, kind) add(OpKind::op, derive<OpKind::kind>);
#define CONSTANT(op) add(OpKind::op, endGradient);
#include "compiler/passes/BackwardRules.def"
  return rules;
}
constexpr std::array<Rule, plan::kOpCount> kRules = rulesOfOps();

} // namespace

Gradients::Gradients(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment)
    : plan_(plan), segment_(segment), isScaled_(plan::scalingOf(plan.job) != plan::Scaling::None),
      grads_(segment.values.size(), kNone), contributions_(segment.values.size(), 0),
      paramOf_(segment.values.size(), -1) {
  for (const plan::Segment::Boundary &in : segment.ins)
    if (const plan::Cell &cell = role.cells[in.cell]; cell.kind == plan::CellKind::Param)
      paramOf_[in.value] = cell.of;
  for (const Op &op : segment.ops)
    if (op.kind == OpKind::View && op.getBool(plan::AttrKey::shared))
      paramOf_[op.results[0]] = paramOf_[op.operands[0]];
  findWanted();
}

/// Marks trained parameters, and all values computed from them. If all parameters are trained,
/// everything is marked.
void Gradients::findWanted() {
  if (std::ranges::all_of(plan_.classes, &plan::ParamClass::isTrained))
    return;
  isWanted_.assign(segment_.values.size(), 0);
  for (ValueId value = 0; value < isWanted_.size(); ++value)
    if (int32_t param = paramOf_[value]; param >= 0) {
      int32_t block = plan_.params[static_cast<size_t>(param)].block;
      isWanted_[value] =
          block < 0 || plan_.classOf(plan_.blocks[static_cast<size_t>(block)]).isTrained;
    }
  for (const Op &op : segment_.ops)
    if (std::ranges::any_of(op.operands, [&](ValueId value) { return isWanted_[value] != 0; }))
      for (ValueId result : op.results)
        isWanted_[result] = 1;
}

void Gradients::write() {
  findSeeds();
  // The ops after the losses (sums into the step state) have no gradient and stay before the
  // backward ops.
  size_t forwardOps = segment_.ops.size();
  for (index_ = forwardOps; index_-- > 0;) {
    // The op is copied, since rules append to the list that contains it.
    const Op op = segment_.ops[index_];
    unit_ = op.unit;
    loc_ = op.loc;
    applyRule(op);
  }
  for (size_t i = forwardOps; i < segment_.ops.size(); ++i)
    segment_.ops[i].phase = plan::Phase::Backward;
}

bool Gradients::hasRule(const Op &op) { return kRules[static_cast<size_t>(op.kind)] != nullptr; }

void Gradients::applyRule(const Op &op) {
  SHARDC_CHECK(hasRule(op), "op '{}' has no backward rule", plan::opInfo(op).name);
  auto hasGradient = [&](ValueId result) { return of(result) != kNone; };
  if (plan::opInfo(op).lossGradient || std::ranges::any_of(op.results, hasGradient))
    kRules[static_cast<size_t>(op.kind)](*this, op);
}

ValueId Gradients::newGrad(ValueId of) {
  int n = contributions_[of]++;
  std::string name = "d." + segment_.values[of].name;
  if (n > 0)
    name += fmt::format(".{}", n + 1);
  ValueId grad = plan::addValue(segment_, std::move(name), segment_.values[of].type,
                                plan::Purpose::Activations);
  segment_.values[grad].counts = segment_.values[of].counts;
  return grad;
}

ValueId Gradients::contribute(Op &op, ValueId of) {
  ValueId value = newGrad(of);
  auto result = static_cast<uint8_t>(op.results.size());
  op.results.push_back(value);
  if (paramOf_[of] < 0)
    return value;
  segment_.values[value].purpose = plan::Purpose::Grads;
  if (grads_[of] != kNone)
    op.ties.push_back({plan::Tie::Acc, result, grads_[of], plan::Pred::Always});
  grads_[of] = value;
  return value;
}

void Gradients::contributeFirst(Op &op, ValueId of) {
  ValueId second = take(of);
  ValueId first = contribute(op, of);
  if (second == kNone)
    return;
  grads_[of] = second; // the sum so far
  while (true) {
    Op &producer = segment_.ops[segment_.values[second].def];
    uint8_t result = segment_.values[second].defResult;
    auto tie = std::ranges::find(producer.ties, result, &plan::Tie::result);
    if (tie == producer.ties.end()) {
      producer.ties.push_back({plan::Tie::Acc, result, first, plan::Pred::Always});
      return;
    }
    second = tie->value;
  }
}

void Gradients::replaceForward(Op op) {
  for (size_t r = 0; r < op.results.size(); ++r) {
    segment_.values[op.results[r]].def = static_cast<uint32_t>(index_);
    segment_.values[op.results[r]].defResult = static_cast<uint8_t>(r);
  }
  segment_.ops[index_] = std::move(op);
}

void Gradients::settle(ValueId of, ValueId contribution) {
  if (!isWanted(of))
    return;
  if (segment_.values[contribution].type.dtype != segment_.values[of].type.dtype) {
    Op cast = makeOp(OpKind::Cast, {contribution});
    cast.results = {newGrad(of)};
    contribution = cast.results[0];
    append(std::move(cast));
  }
  if (grads_[of] == kNone) {
    grads_[of] = contribution;
    return;
  }
  Op add = makeOp(OpKind::Add, {grads_[of], contribution});
  add.results = {newGrad(of)};
  grads_[of] = add.results[0];
  append(std::move(add));
}

ValueId Gradients::castTo(ValueId gradient, DType dtype) {
  if (auto known = casts_.find({gradient, dtype}); known != casts_.end())
    return known->second;
  const plan::Value like = segment_.values[gradient];
  plan::Type type = like.type;
  type.dtype = dtype;
  // The type before the shape, because passes forward the operand of a view of all its elements.
  std::optional<Op> view = findProducer(gradient);
  const bool isView =
      view && view->kind == OpKind::View && numelOf(view->operands[0]) == like.type.numel();
  Op cast = isView ? makeOp(OpKind::View, {castTo(view->operands[0], dtype)})
                   : makeOp(OpKind::Cast, {gradient});
  ValueId result = plan::addValue(segment_, like.name + ".rounded", type, like.purpose);
  segment_.values[result].counts = like.counts;
  cast.results = {result};
  append(std::move(cast));
  return casts_[{gradient, dtype}] = result;
}

ValueId Gradients::take(ValueId of) { return std::exchange(grads_[of], kNone); }

void Gradients::emitFor(ValueId of, Op op) { emitForEach({&of, 1}, std::move(op)); }

void Gradients::emitForEach(std::span<const ValueId> of, Op op) {
  if (std::ranges::none_of(of, [&](ValueId each) { return isWanted(each); }))
    return;
  std::vector<ValueId> made;
  for (ValueId each : of)
    if (paramOf_[each] < 0 || isWanted(each)) {
      made.push_back(contribute(op, each));
    } else { // of a frozen parameter: nothing reads it
      made.push_back(newGrad(each));
      op.results.push_back(made.back());
    }
  append(std::move(op));
  for (size_t i = 0; i < of.size(); ++i)
    if (paramOf_[of[i]] < 0)
      settle(of[i], made[i]);
}

void Gradients::emitForParam(ValueId of, Op op) {
  SHARDC_CHECK(paramOf_[of] >= 0, "'{}' is not a parameter", segment_.values[of].name);
  emitFor(of, std::move(op));
}

Op Gradients::producerOf(ValueId value) const {
  uint32_t def = segment_.values[value].def;
  SHARDC_CHECK(def != kNone, "'{}' is made by no op of the segment", segment_.values[value].name);
  return segment_.ops[def];
}

std::optional<Op> Gradients::findProducer(ValueId value) const {
  uint32_t def = segment_.values[value].def;
  return def == kNone ? std::nullopt : std::optional(segment_.ops[def]);
}

ValueId Gradients::makeAgain(ValueId value, Op op) {
  const plan::Value like = segment_.values[value];
  op.results = {plan::addValue(segment_, "again." + like.name, like.type, like.purpose)};
  op.isRecomputed = true;
  ValueId result = op.results[0];
  segment_.values[result].counts = like.counts;
  append(std::move(op));
  return result;
}

ValueId Gradients::emitLike(ValueId value, std::string name, Op op) {
  const plan::Value like = segment_.values[value];
  ValueId result = plan::addValue(segment_, std::move(name), like.type, like.purpose);
  op.results = {result};
  append(std::move(op));
  return result;
}

Op Gradients::statsOf(const Op &loss) const {
  uint32_t def = segment_.values[loss.operands[0]].def;
  while (def != kNone && segment_.ops[def].kind == OpKind::AllGather)
    def = segment_.values[segment_.ops[def].operands[0]].def;
  SHARDC_CHECK(def != kNone && segment_.ops[def].kind == OpKind::VocabStats,
               "a loss over parts of the vocabulary takes gathered statistics");
  return segment_.ops[def];
}

bool Gradients::isBetweenRanks(ValueId value) const {
  uint32_t def = segment_.values[value].def;
  if (def != kNone && segment_.ops[def].kind == OpKind::Pack)
    return isBetweenRanks(segment_.ops[def].operands[0]);
  return def != kNone && (segment_.ops[def].kind == OpKind::AllGather ||
                          segment_.ops[def].getBool(plan::AttrKey::shared));
}

std::vector<ValueId> Gradients::piecesOf(const Op &first) const {
  std::vector<ValueId> pieces;
  int64_t end = 0;
  for (size_t i = index_; i < segment_.ops.size() && end < numelOf(first.operands[0]); ++i)
    if (const Op &op = segment_.ops[i];
        op.kind == OpKind::View && op.operands[0] == first.operands[0]) {
      SHARDC_CHECK(op.getInt(plan::AttrKey::offset) == end && op.group < 0,
                   "forward views of activations cut them into pieces");
      pieces.push_back(op.results[0]);
      end += numelOf(op.results[0]);
    }
  return pieces;
}

const Op *Gradients::findPairs(const Op &loss) const {
  auto pairs = std::ranges::find_if(segment_.ops, [&](const Op &op) {
    return op.kind == OpKind::PreferenceLoss && op.operands[0] == loss.results[0];
  });
  return pairs == segment_.ops.end() ? nullptr : &*pairs;
}

ValueId Gradients::weightsOf(const Op &loss, ValueId mask) const {
  const Op *pairs = findPairs(loss);
  return pairs == nullptr ? mask : plan::resultNamed<OpKind::PreferenceLoss>(*pairs, "weights");
}

ValueId Gradients::countOf(ValueId mask) const {
  auto counts = [&](const Op &op) {
    return op.kind == OpKind::TokenCount && op.operands[0] == mask;
  };
  ValueId count = kNone;
  for (const Op &op : segment_.ops)
    if (std::optional<Op> summed =
            op.kind == OpKind::AllReduce ? findProducer(op.operands[0]) : std::nullopt;
        summed && counts(*summed))
      return op.results[0];
    else if (counts(op) && count == kNone)
      count = op.results[0];
  return count;
}

void Gradients::findSeeds() {
  for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
    const Op op = segment_.ops[i];
    const plan::OpInfo &info = plan::opInfo(op);
    if (!info.lossGradient)
      continue;
    int mask = plan::positionOf(info.operands, "mask");
    bool divides = plan::positionOf(plan::opInfo(*info.lossGradient).operands, "n") >= 0;
    Seed seed{i, kNone};
    if (const Op *pairs = divides ? findPairs(op) : nullptr)
      seed.tokens = plan::resultNamed<OpKind::PreferenceLoss>(*pairs, "n");
    else if (divides)
      seed.tokens = countOf(op.operands[static_cast<size_t>(mask)]);
    SHARDC_CHECK(!divides || seed.tokens != kNone, "no op counts the tokens of '{}'",
                 segment_.values[op.results[0]].name);
    bool isReplaced = plan::positionOf(plan::opInfo(*info.lossGradient).results, "losses") >= 0;
    if (isReplaced)
      countBefore(seed);
    i = seed.loss;
    seeds_.push_back(seed);
  }
}

/// Moves the ops that count tokens before the loss, because the op that replaces the loss reads the
/// count.
void Gradients::countBefore(Seed &seed) {
  std::vector<uint32_t> later; // the ops that compute the count
  for (uint32_t def = segment_.values[seed.tokens].def; def != kNone && def > seed.loss;
       def = segment_.values[segment_.ops[def].operands[0]].def)
    later.push_back(def);
  for (size_t moved = 0; moved < later.size(); ++moved) {
    // Each op that moves before the loss shifts the ops in between by one place.
    auto first = segment_.ops.begin() + seed.loss;
    auto at = segment_.ops.begin() + later[moved] + static_cast<std::ptrdiff_t>(moved);
    std::rotate(first, at, at + 1);
  }
  if (later.empty())
    return;
  seed.loss += static_cast<uint32_t>(later.size());
  plan::renumber(segment_);
}

/// The step state at this position. Losses are added to it in place.
ValueId Gradients::stateAt(size_t index) const {
  ValueId state = kNone;
  for (size_t i = 0; i < segment_.ops.size(); ++i) {
    const Op &add = segment_.ops[i];
    if (add.kind != OpKind::LossAdd)
      continue;
    if (i < index)
      state = add.results[0];
    else if (state == kNone)
      state = add.operands[plan::operandIndex<OpKind::LossAdd>("state")];
  }
  SHARDC_CHECK(state != kNone, "a training body adds its losses");
  return state;
}

Op Gradients::start(std::vector<ValueId> operands, bool isAppended) const {
  auto seed = std::ranges::find(seeds_, static_cast<uint32_t>(index_), &Seed::loss);
  SHARDC_CHECK(seed != seeds_.end(), "'{}' starts no gradients",
               plan::opInfo(segment_.ops[index_]).name);
  Op op = makeOp(*plan::opInfo(segment_.ops[index_]).lossGradient, {});
  op.operands = std::move(operands);
  if (seed->tokens != kNone)
    op.operands.push_back(seed->tokens);
  if (isScaled_)
    op.operands.push_back(stateAt(isAppended ? segment_.ops.size() : index_));
  return op;
}

} // namespace shardc::passes
