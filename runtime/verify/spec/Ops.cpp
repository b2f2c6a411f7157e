// Handles ops whose effect does not follow from factors, such as loads, views and slices.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

Value Walk::added(const At &at, const Value &a, const Value &b) {
  auto add = [&](const State &x, const State &y) {
    State sum = compute_.added(x, y);
    if (!compute_.why().empty())
      refuseAt(at, compute_.why());
    return sum;
  };
  if (a.isBlock() && b.isBlock()) {
    BlockState sum = *b.block;
    if (a.block->block != sum.block || a.block->axes != sum.axes)
      return refuse(at, "adds a different block, or a different part of it");
    for (size_t p = 0; p < sum.params.size(); ++p)
      sum.params[p] = add(a.block->params[p], sum.params[p]);
    return sum;
  }
  if (!a.isOne() || !b.isOne())
    return refuse(at, "adds to an unknown value");
  return add(a.state, b.state);
}

/// Distance between the numbers of values loaded in training and in evaluations; at least the
/// number of results of batch.load.
constexpr int64_t kLoads = 16;

void Walk::declare(std::string what) {
  if (std::ranges::find(declared_, what) == declared_.end())
    declared_.push_back(std::move(what));
}

Values Walk::follow(const At &at) {
  bool isOther =
      at.role.segment().kind == SegmentKind::Eval && plan_.job.validation.evalMicroBatchSize != 0;
  compute_.setLoads(isOther ? kLoads : 0);
  checkCounts(at);
  checkBlocks(at);
  checkHyper(at);
  if (opInfo(at.op).form)
    return followQuantize(at);
  const RuleOf rule = ruleOf(at.op);
  if (rule.takes == RuleOf::Step && !isSpecification_ &&
      (at.role.step < 0 || at.role.step >= static_cast<int64_t>(goals_.steps.size())))
    return refuse(at, "is in no step of the model");
  if (rule.takes == RuleOf::Ones && !takesOnes(at, at.op.operands.size()))
    return {};
  return (this->*rule.rule)(at);
}

/// How the results of an op follow: for most ops from their factors.
Walk::RuleOf Walk::ruleOf(const Op &op) {
  using enum OpKind;
#define FOLLOW(rule, takes, ...)                                                                   \
  for (OpKind kind : {__VA_ARGS__})                                                                \
    if (op.kind == kind)                                                                           \
      return {&Walk::rule, RuleOf::takes};
#include "runtime/verify/spec/Spec.def"
  return opInfo(op).collective      ? RuleOf{&Walk::followMove, RuleOf::Any}
         : opInfo(op).isOptimizer() ? RuleOf{&Walk::followOptimizer, RuleOf::Step}
                                    : RuleOf{&Walk::followPlain, RuleOf::Any};
}

/// Checks that the counts which the op reads belong to the rows that it reads.
void Walk::checkCounts(const At &at) {
  const Value *counts = operandOf(at, "counts");
  for (ValueId value : at.op.operands)
    if (counts && at.role.segment().values[value].counts != kNone &&
        !areCountsOf(*counts, at.role.values[value]))
      refuse(at, "does not take the counts of `%{}`", at.role.segment().values[value].name);
}

/// The counts of rows of experts: those of the runs into which tokens were dispatched. kNoTerm if
/// the term has no such rows.
TermId Walk::countsOf(TermId rows) {
  while (true) {
    Term of = terms_[terms_.bare(rows)];
    if (of.kind != Term::Apply || of.operands.empty())
      return kNoTerm;
    if (of.op == OpKind::MakeRuns) {
      of.result = resultIndex<OpKind::MakeRuns>("counts");
      return terms_.of(of);
    }
    Op op;
    op.kind = of.op, op.attrs = of.attrs;
    const OpFactors &factors = factorsOf(of.op);
    const FactorValue &made = resultOf(op, factors, of.result);
    auto row = std::ranges::find_if(made.words(), [&](const FactorAtom &atom) {
      return hasRole(factors, atom.factor, FactorRole::Rows);
    });
    if (row == made.words().end())
      return kNoTerm;
    size_t from = factors.boundBy(row->factor).value_or(of.operands.size());
    for (size_t i = 0; from >= of.operands.size() && i < of.operands.size(); ++i)
      if (plan::operandOf(op, factors, i).has(row->factor))
        from = i;
    if (from >= of.operands.size())
      return kNoTerm;
    rows = of.operands[from];
  }
}

/// Whether the value has the counts of these rows, on the same ranks.
bool Walk::areCountsOf(const Value &counts, const Value &rows) {
  auto rowsAt = [](const State &state, uint16_t axis) {
    const Place *place = state.at(axis);
    bool isInstance = place && place->kind == Place::Instance;
    const Place::Rows rows = !place ? Place::Any : isInstance ? Place::Own : place->rows;
    return std::pair(rows, rows == Place::Taken ? place->outer : 1);
  };
  if (!rows.isOne() || rows.state.isSum())
    return true; // other rules refuse these
  bool isSame = counts.isOne() && terms_.bare(counts.state.term) == countsOf(rows.state.term) &&
                counts.state.microbatch == rows.state.microbatch;
  for (uint16_t axis = 0; isSame && axis < plan_.mesh.size(); ++axis)
    isSame = rowsAt(counts.state, axis) == rowsAt(rows.state, axis);
  return isSame;
}

/// Checks that the counts which the plan's types name are those of the results' rows.
void Walk::checkRows(const At &at) {
  const std::vector<plan::Value> &values = at.role.segment().values;
  for (ValueId result : at.op.results)
    if (ValueId counts = values[result].counts;
        counts != kNone && !areCountsOf(at.role.values[counts], at.role.values[result]))
      refuse(at, "makes the rows of `%{}`, which `%{}` does not count", values[result].name,
             values[counts].name);
}

/// Checks that blocks which the op takes are the one that it names, if it names one. Only views and
/// slices take copies of a value.
void Walk::checkBlocks(const At &at) {
  int64_t named = at.op.attrs.empty() ? -1 : at.op.getInt(AttrKey::block);
  bool takesCopies = at.op.kind == OpKind::MergeSlices ||
                     (at.op.kind == OpKind::View && at.op.getInt(AttrKey::coef) != 0);
  for (ValueId value : at.op.operands) {
    const Value &has = at.role.values[value];
    if (named >= 0 && has.isBlock() && has.block->block != named)
      refuse(at, "names another block than '{}'", blockOf(*has.block).name);
    if (!takesCopies && has.isOne() && has.state->copies != 1)
      refuse(at, "takes copies of a value");
  }
}

/// Whether the first operands are single values.
bool Walk::takesOnes(const At &at, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!operand(at, i).isOne())
      return refuse(at, "takes `%{}`, which is not a single value",
                    at.role.segment().values[at.op.operands[i]].name);
  return true;
}

/// A call of the op, or of another one with the attributes that both have, with the op's first
/// operands.
Call Walk::callOf(const At &at, OpKind kind, size_t operands) const {
  Call call = {kind, at.op.attrs, mesh_.axesOf(at.op.group), {}, {}, DType::F32};
  std::erase_if(call.attrs, [&](const Attr &attr) { return !opInfo(kind).attrs.has(attr.key); });
  call.operands.reserve(operands), call.results.reserve(at.op.results.size());
  for (size_t i = 0; i < operands; ++i)
    call.operands.push_back({operand(at, i).isOne() ? &operand(at, i).state : &stepState_,
                             &typeOf(at, at.op.operands[i])});
  for (ValueId value : at.op.results)
    call.results.push_back(&typeOf(at, value));
  return call;
}

std::vector<State> Walk::computed(const At &at, const Call &call) {
  std::vector<State> made = compute_.apply(call);
  if (!compute_.why().empty())
    refuseAt(at, compute_.why());
  return made;
}

/// Checks the op's number of positions, if it has one.
void Walk::checkPositions(const At &at) {
  const Type &tokens = terms_.shape(compute_.loaded(0));
  if (int64_t positions = at.op.getInt(AttrKey::positions);
      positions != 0 && tokens.rank == 2 && positions != tokens.shape[1])
    refuse(at, "has {} positions; sequences have {}", positions, tokens.shape[1]);
}

Values Walk::followPlain(const At &at) {
  const Op &op = at.op;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (operand(at, i).kind != Value::Step && !operand(at, i).isOne())
      return refuse(at, "takes `%{}`, which is not a single value",
                    at.role.segment().values[op.operands[i]].name);
  Call call = callOf(at, op.kind, op.operands.size());
  checkPositions(at);
  // No operand has the size of these. Loads of the same rows may differ only in how they are cut.
  if (op.kind == OpKind::ExpertLoad)
    call.number = call.results[0]->shape[0] << 32 | call.results[0]->shape[1];
  else if (op.kind == OpKind::Fill && !at.role.segment().body)
    call.number = call.results[0]->numel();
  auto isPartial = [](const Operand &operand) {
    const Cover &cover = (*operand.state)->cover;
    return operand.state->isSum() ||
           (cover.isPiece() ? operand.state->is(static_cast<uint16_t>(cover.axis), Place::Part)
                            : !cover.isAll());
  };
  if (op.kind == OpKind::Add && std::ranges::any_of(call.operands, isPartial))
    return {added(at, operand(at, 0), operand(at, 1))};
  std::vector<State> made = computed(at, call);
  if (opInfo(op).takesOwnRows() && std::ranges::any_of(made[0]->places, [](const Place &place) {
        return place.rows == Place::Own || place.kind == Place::Shard;
      }))
    declare(fmt::format("{}: {}", opInfo(op).name, opInfo(op).ownRows));
  return valuesOf(std::move(made));
}

Values Walk::followCopy(const At &at) { return {operand(at, 0)}; }

Values Walk::followCast(const At &at) {
  const Value &x = operand(at, 0);
  if (x.kind == Value::Largest && at.op.getFloat(AttrKey::scale) != 1)
    return refuse(at, "scales maxima");
  return x.isBlock()                ? castBlock(at, *x.block)
         : x.kind == Value::Largest ? Values{x}
                                    : followPlain(at);
}

/// Turns a value that ranks have gathered along the axes back into one of each rank's own samples.
/// The order of the rows of a sequence does not matter.
void Walk::takeAll(const At &at, State &state, const std::vector<uint16_t> &axes) {
  const uint64_t slices = state->order.slices;
  state.edit().order = Order();
  for (uint16_t axis : axes) {
    bool isData = contains(dataAxes_, axis);
    const Place *place = state.at(axis);
    bool isAll = isData ? place != nullptr && place->rows == Place::All
                        : place == nullptr && (slices & bitOf(axis)) != 0;
    if (!isAll)
      refuse(at, "does not take the samples of all ranks that have shards of the table");
    if (isData)
      state.put({axis, Place::Instance});
  }
}

/// Looks up rows in a table of which each rank has a shard. Rows in shards of other ranks are
/// zeros, so the result is a partial sum.
Values Walk::followShardRows(const At &at) {
  const Value &all = operand(at, 0), &shard = operand(at, 1);
  if (!all.isOne() || !shard.isBlock() || shard.block->params.size() != 1)
    return refuse(at, "does not take a block with one table");
  State ids = all.state;
  takeAll(at, ids, shard.block->axes);
  DType dtype = typeOf(at, at.op.results[0]).dtype;
  State rows = computed(at, {OpKind::Embedding,
                             {},
                             {},
                             {{&ids, nullptr}, {&shard.block->params[0], nullptr}},
                             {nullptr},
                             dtype})[0];
  rows.edit().order = all.state->order;
  for (uint16_t axis : shard.block->axes)
    rows.put(
        {.axis = axis, .kind = Place::Part, .rows = all.state.at(axis) ? Place::All : Place::Any});
  return {std::move(rows)};
}

/// The gradient of a table, from the samples of all ranks that have shards of it.
Values Walk::followShardBwd(const At &at) {
  const Type &type = typeOf(at, at.op.results[0]);
  auto index = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  std::optional<std::vector<uint16_t>> axes = divided(index, type.numel());
  if (!axes || paramsOf(index).size() != 1)
    return refuse(at, "does not compute a shard of a block with one table");
  State dx = operand(at, 0).state, ids = operand(at, 1).state;
  if (!(dx->order == ids->order))
    return refuse(at, "takes gradients in a different order than tokens");
  takeAll(at, dx, *axes);
  takeAll(at, ids, *axes);
  State table = computed(
      at,
      {OpKind::EmbeddingBwd, {}, {}, {{&dx, nullptr}, {&ids, nullptr}}, {nullptr}, type.dtype})[0];
  for (uint16_t axis : *axes)
    if (table.at(axis))
      table.put({axis, Place::Summed});
  scaleGradient(at, table);
  return {BlockState{index, {std::move(table)}, *axes, {}}};
}

/// A grouped product whose second result is the sum of squares of the first.
Values Walk::followProductSquares(const At &at) {
  Call call = callOf(at, OpKind::GroupedMatMulBwd, at.op.operands.size());
  call.results.resize(1);
  return {computed(at, call)[0], Value::Squares};
}

Values Walk::followLoad(const At &at) {
  Values made;
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    const Type &type = typeOf(at, at.op.results[r]);
    State state;
    state.term = compute_.loaded(static_cast<int64_t>(r));
    state.microbatch = microbatch(at.role);
    for (uint16_t axis : dataAxes_)
      state.put({axis, Place::Instance});
    if (type.rank > 1)
      for (uint16_t axis : mesh_.axesOf(at.op.group))
        state.put({axis, Place::Shard, type.shape[0], true});
    state.edit().whole = mesh_.wholeOf(state, type);
    terms_.setShape(state.term, state->whole);
    made.push_back(std::move(state));
  }
  return made;
}

Values Walk::viewedBlock(const At &at, const BlockState &from) {
  const Type &type = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  std::optional<std::vector<uint16_t>> axes = divided(from.block, type.numel());
  if (coef != 0) {
    BlockState part = from;
    part.axes = mesh_.axesOf(at.op.group);
    bool isPart = offset == 0 && from.axes.empty() && coef == type.numel() && axes == part.axes;
    return isPart ? Values{std::move(part)}
                  : refuse(at, "views a part of a block that is not the rank's shard");
  }
  if (from.axes.empty())
    for (size_t i = 0; i < from.params.size(); ++i)
      if (const Param &param = plan_.params[paramsOf(from.block)[i]];
          param.offset == offset && param.type.numel() == type.numel())
        return {from.params[i]};
  if (offset == 0 && axes == from.axes)
    return {from};
  return refuse(at, "views elements of block '{}' that are not a parameter", blockOf(from).name);
}

Values Walk::followView(const At &at) {
  const Value &x = operand(at, 0);
  if (x.isBlock())
    return viewedBlock(at, *x.block);
  if (x.kind == Value::Largest)
    return viewedMaxima(at, *x.maxima);
  if (!x.isOne())
    return refuse(at, "views a value that is not followed");
  if (isTallied(x.state))
    return followRow(at, x.state);
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  State state = x.state;
  if (coef != 0) { // this rank's part of all, or of a piece
    std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
    int64_t ofAll = coef * mesh_.members(axes), copies = state->copies;
    if (ofAll != from.numel())
      state = pieceOf(at, std::move(state), std::exchange(offset, 0), ofAll);
    auto isWhole = [&](uint16_t axis) { return state.at(axis) == nullptr; };
    if (offset != 0 || coef != to.numel() * copies || !std::ranges::all_of(axes, isWhole) ||
        !mover_.take(state, axes))
      return refuse(at, "views a part of a value that is already divided");
  } else if (offset != 0 || to.numel() != from.numel()) {
    auto isOfSamples = [](const Place &place) { return place.kind == Place::Instance; };
    Term term = {Term::Apply, OpKind::View, 0, to.numel(), {}, {state.term}};
    term.attrs.push_back({AttrKey::offset, {.i = offset}});
    TermId some = kNoTerm;
    if (state->order.isOfDims() && !state.isSum() &&
        std::ranges::all_of(state->places, isOfSamples))
      some = terms_.of(std::move(term));
    if (some == kNoTerm || (!isSpecification_ && !terms_.isOfModel(some)))
      return {pieceOf(at, std::move(state), offset, to.numel())};
    state.term = some;
    terms_.setShape(state.term, to);
    state.edit().whole = to;
    return {std::move(state)};
  }
  if (state->order.isOfDims()) {
    Type whole = mesh_.wholeOf(state, to);
    if (isSpecification_)
      terms_.addView(terms_.bare(state.term), to);
    else if (const Type *viewed = terms_.viewLike(terms_.bare(state.term), to))
      whole = *viewed;
    if (state->whole.rank == 0 || whole.numel() == state->whole.numel()) // otherwise it is padded
      state.edit().whole = whole;
  }
  return {std::move(state)};
}

/// Whether the value is a buffer to which each op `tally` adds in a row of its own.
bool Walk::isTallied(const State &state) const {
  if (!state.isSum() && terms_[terms_.bare(state.term)].op != OpKind::Tally)
    return false;
  std::vector<Contribution> of = contributionsOf(terms_, state);
  return std::ranges::all_of(of, [&](const Contribution &each) {
    return terms_[each.term].kind == Term::Apply && terms_[each.term].op == OpKind::Tally;
  });
}

/// A row of such a buffer.
Values Walk::followRow(const At &at, const State &tallied) {
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), columns = from.shape[from.rank - 1u];
  if (offset % columns != 0 || to.numel() > columns || at.op.getInt(AttrKey::coef) != 0)
    return refuse(at, "does not view a row of tallies");
  State row = tallied;
  row.sum = contributionsOf(terms_, tallied), row.term = kNoTerm;
  std::erase_if(row.sum, [&](const Contribution &each) {
    int64_t slot = 0;
    for (const Attr &attr : terms_[each.term].attrs)
      slot = attr.key == AttrKey::slot ? attr.i : slot;
    return slot != offset / columns;
  });
  row.edit().whole = to;
  return {std::move(row)};
}

/// The mean over the microbatches of the step so far. The operand must contain each of them once.
Values Walk::followRunningMean(const At &at) {
  State mean = operand(at, 0).state;
  int64_t now = microbatch(at.role);
  if (mean.sum.size() != 1 || mean.sum[0].first != at.role.step * kStep || mean.sum[0].last != now)
    return refuse(at, "does not take the sum over the microbatches so far");
  mean.term = terms_.of({Term::Apply, OpKind::RunningMean, 0, 0, {}, {mean.sum[0].term}});
  mean.sum.clear(), mean.microbatch = now;
  terms_.setShape(mean.term, mean->whole);
  return {std::move(mean)};
}

Values Walk::followPack(const At &at) {
  auto index = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  const Value &first = operand(at, 0);
  if (index < 0 && first.isOne() && first.state->cover.isPiece())
    return followJoin(at);
  auto isSame = [&](ValueId value) { return at.role.values[value] == first; };
  if (index < 0 && first.isOne() && !first.state.isSum() && first.state->cover.isAll() &&
      first.state->order.isOfDims() && std::ranges::all_of(at.op.operands, isSame)) {
    State copies = first.state;
    copies.edit().copies = static_cast<int64_t>(at.op.operands.size());
    return {std::move(copies)};
  }
  if (index < 0)
    return refuse(at, "does not pack a block");
  if (!takesOnes(at, at.op.operands.size()))
    return {};
  BlockState block = {index, {}, {}, {}}; // the verifier compares sizes with those of parameters
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    block.params.push_back(operand(at, i).state);
  return {std::move(block)};
}

Values Walk::followTranspose(const At &at) {
  State x = operand(at, 0).state;
  if (isCopyIn8Bits(x.term))
    return followTransposed8Bits(at);
  Order order = {at.op.getInt(AttrKey::outer), at.op.getInt(AttrKey::inner), 0};
  bool isBack = x->order == Order{order.inner, order.outer, 0};
  if ((!x->order.isOfDims() && !isBack) || x.hasRowsOfAll())
    return refuse(at, "does not match the order of the elements");
  if (isBack || (order.outer != 1 && order.inner != 1)) // otherwise no element moves
    x.edit().order = isBack ? Order() : order;
  return {std::move(x)};
}

Values Walk::followMergeSlices(const At &at) {
  State x = operand(at, 0).state;
  int64_t outer = at.op.getInt(AttrKey::outer), inner = at.op.getInt(AttrKey::inner);
  if (!at.op.getBool(AttrKey::inverse)) {
    bool isOfSlices = x->order.slices != 0 && x->order.inner == inner && x->order.outer == outer &&
                      x->copies == 1 && !x.hasRowsOfAll();
    x.edit().order = Order();
    return isOfSlices ? Values{std::move(x)}
                      : refuse(at, "does not match the order of the elements");
  }
  // With several levels of slices, the op makes slices along those axes that have none yet.
  std::vector<uint16_t> context = mesh_.axesOf(GroupKind::Context);
  std::erase_if(context, [&](uint16_t axis) { return x.at(axis) && x.at(axis)->isMirrored; });
  bool isPlain = x->order.isOfDims() && mesh_.members(context) == inner && !context.empty() &&
                 mover_.isInnermostSlice(x, context) && outer % x->copies == 0;
  x.edit().order = {outer / x->copies, inner, Mesh::bitsOf(context)};
  return isPlain ? Values{std::move(x)}
                 : refuse(at, "does not slice sequences like the context-parallel ranks");
}

/// A loss over a divided vocabulary: each rank has statistics of its columns, and the loss combines
/// those of all ranks.
Values Walk::followVocabStats(const At &at) {
  const State &logits = operand(at, 0).state, &labels = operand(at, 1).state;
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
  int64_t columns = logits->whole.rank == 0 ? 0 : logits->whole.shape[logits->whole.rank - 1u];
  bool isByColumns = !axes.empty() && columns != 0;
  int64_t outer = isByColumns ? logits->whole.numel() / columns : 0;
  for (uint16_t axis : axes) {
    const Place *place = logits.at(axis);
    isByColumns &= place != nullptr && place->kind == Place::Shard && !place->isMirrored &&
                   place->outer == outer && !labels.at(axis);
    outer *= mesh_.size(axis);
  }
  if (!isByColumns || logits.microbatch != labels.microbatch || !(logits->cover == labels->cover) ||
      !logits->order.isOfDims() || !labels->order.isOfDims())
    return refuse(at, "does not take logits that are cut by columns");
  State stats = logits;
  stats.term = terms_.of({Term::Apply,
                          OpKind::VocabStats,
                          0,
                          0,
                          meantAttrs(at.op.kind, at.op.attrs),
                          {logits.term, labels.term}});
  for (uint16_t axis : axes)
    stats.put({axis, Place::Shard});
  stats.edit().whole = Type();
  return {std::move(stats)};
}

Values Walk::followVocabLoss(const At &at) {
  const State &stats = operand(at, 0).state, &mask = operand(at, 1).state;
  const Term of = terms_[stats.term];
  if (of.op != OpKind::VocabStats)
    return refuse(at, "does not take statistics of logits");
  for (const Place &place : stats->places)
    if (const Place *other = mask.at(place.axis); other == nullptr || !(*other == place))
      return refuse(at, "does not take the statistics of all columns");
  if (!std::ranges::equal(meantAttrs(at.op.kind, at.op.attrs), of.attrs, areSame))
    return refuse(at, "has other attributes than its statistics");
  State logits = stats, labels = mask;
  logits.term = of.operands[0], labels.term = of.operands[1];
  logits.edit().whole = terms_.shape(logits.term);
  Call call = callOf(at, OpKind::CrossEntropy, 0);
  call.attrs = of.attrs, call.group.clear();
  call.operands = {{&logits, nullptr}, {&labels, nullptr}, {&mask, nullptr}};
  return valuesOf(computed(at, call));
}

/// Whether the state is the slices of the member at distance `from`.
bool Walk::Slices::areAt(const State &state, int64_t from) const {
  return std::ranges::all_of(axes, [&](uint16_t axis) {
    const Place *place = state.at(axis);
    return place && place->kind == Place::Shard && place->isMirrored && place->distance == from &&
           (from == 0 || place->isOfSeveral == (axes.size() > 1));
  });
}

bool Walk::findSlices(const At &at, Slices &slices) {
  auto has = [&](const char *name) -> const State & { return operandOf(at, name)->state; };
  for (uint16_t axis : mesh_.axesOf(GroupKind::Context))
    if (const Place *place = has("q").at(axis); place && place->isMirrored)
      slices.axes.push_back(axis);
  if (slices.axes.empty())
    return refuse(at, "does not take slices of sequences");
  slices.count = mesh_.members(slices.axes);
  for (const char *name : {"q", "qpos", "qdocs"})
    if (!slices.areAt(has(name), 0))
      return refuse(at, "operand {} is not the rank's slice", name);
  const Place *first = has("k").at(slices.axes[0]);
  slices.isGathered = first == nullptr;
  slices.distance = first ? first->distance : 0;
  for (const char *name : {"k", "v", "kpos", "kdocs"}) {
    const State &state = has(name);
    auto isWhole = [&](uint16_t axis) { return state.at(axis) == nullptr; };
    bool isLike = slices.isGathered ? std::ranges::all_of(slices.axes, isWhole)
                                    : slices.areAt(state, slices.distance);
    if (!isLike || !state->order.isOfDims())
      return refuse(at, "operand {} belongs to different slices than the keys", name);
  }
  TermId positions = compute_.loaded(resultIndex<OpKind::BatchLoad>("more"));
  TermId docs = compute_.loaded(resultIndex<OpKind::BatchLoad>("docs"));
  for (auto [name, needed] : {std::pair("qpos", positions), std::pair("kpos", positions),
                              std::pair("qdocs", docs), std::pair("kdocs", docs)})
    if (has(name).term != needed)
      return refuse(at, "operand {} is not the batch's positions or documents", name);
  int64_t n = slices.count, said = at.op.getInt(AttrKey::slices);
  int64_t by = (at.op.getInt(AttrKey::by) % n + n) % n;
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
  bool isOfGroup = axes.size() >= slices.axes.size() &&
                   std::equal(slices.axes.begin(), slices.axes.end(), axes.begin());
  return said == 0 || (said == n && by == slices.distance && isOfGroup) ||
         refuse(at, "has slices that differ from its attributes");
}

/// The results of attention to whole sequences, placed as the slices that ranks have.
Values Walk::placedBySlices(std::vector<State> made, const Slices &slices, bool isBack) {
  Cover cover;
  if (!slices.isGathered) {
    cover.axis = slices.axes[0];
    cover.slices.assign(static_cast<size_t>(slices.count), false);
    cover.slices[static_cast<size_t>(slices.distance)] = true;
  }
  for (size_t r = 0; r < made.size(); ++r) {
    State &state = made[r];
    const Type &whole = state->whole;
    bool isStatistics = !isBack && r == 1, isOfKeys = isBack && r > 0;
    int64_t outer = isStatistics ? whole.shape[0] * whole.shape[1] : whole.shape[0];
    int64_t distance = isOfKeys ? slices.distance : 0;
    bool isOfSeveral = distance != 0 && slices.axes.size() > 1;
    for (uint16_t axis : slices.axes)
      if (isOfKeys && slices.isGathered)
        state.put({axis, Place::Part});
      else
        state.put({axis, Place::Shard, outer, true, distance, isOfSeveral});
    state.edit().cover = isOfKeys && slices.isGathered ? Cover() : cover;
  }
  return valuesOf(std::move(made));
}

/// Attention of slices to slices, as a part of attention to whole sequences.
Values Walk::followAttentionPart(const At &at) {
  Slices slices;
  bool isBack = at.op.kind == OpKind::AttentionPartBwd;
  checkPositions(at);
  if (!findSlices(at, slices))
    return {};
  Call call = callOf(at, isBack ? OpKind::AttentionBwd : OpKind::Attention, 0);
  std::erase_if(call.group, [&](uint16_t axis) { return contains(slices.axes, axis); });
  std::vector<State> states;
  states.reserve(at.op.operands.size());
  std::string_view names = opInfo(at.op).operands;
  for (size_t i = 0; i < at.op.operands.size(); ++i) {
    std::string_view name = takeUntil(names, ' ');
    if (name == "qpos" || name == "kpos" || name == "kdocs")
      continue; // which op `attention` does not have
    State &state = states.emplace_back(operand(at, i).state);
    for (uint16_t axis : slices.axes)
      state.remove(axis);
    call.operands.push_back({&state, &typeOf(at, at.op.operands[i])});
  }
  call.between = call.operands[0].type->dtype;
  call.results.assign(call.results.size(), nullptr); // of whole sequences
  return placedBySlices(computed(at, call), slices, isBack);
}

Values Walk::followAttentionJoin(const At &at) {
  std::vector<State> states;
  for (size_t i = 0; i < 4; ++i)
    states.push_back(operand(at, i).state);
  Values made;
  for (size_t r = 0; r < 2; ++r) {
    bool isOfOne = states[0]->cover == states[1]->cover && states[2]->cover == states[3]->cover &&
                   terms_.bare(states[r].term) == terms_.bare(states[r + 2].term) &&
                   !states[0]->cover.isAll();
    if (!isOfOne)
      return refuse(at, "does not join two parts of one attention");
    states[r + 2].term = states[r].term;
    State sum = added(at, states[r], states[r + 2]).state;
    sum.term = terms_.rounded(typeOf(at, at.op.results[r]).dtype, terms_.bare(sum.term));
    made.push_back(std::move(sum));
  }
  return made;
}

} // namespace shardc::plan::spec
