// Handles ops whose effect does not follow from a FACTORS row, such as loads, views and slices.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

std::optional<Value> Walk::added(const At &at, const Value &a, const Value &b) {
  if (a.isBlock() && b.isBlock()) {
    BlockState sum = *b.block;
    if (a.block->block != sum.block || a.block->axes != sum.axes)
      return refuse(at, "adds a different block, or a different part of it");
    for (size_t p = 0; p < sum.params.size(); ++p) {
      std::optional<State> each = compute_.added(a.block->params[p], sum.params[p]);
      if (!each)
        return refuseComputed(at);
      sum.params[p] = std::move(*each);
    }
    return Value::of(std::move(sum));
  }
  if (!a.isOne() || !b.isOne())
    return refuse(at, "adds to an unknown value");
  std::optional<State> sum = compute_.added(a.state, b.state);
  if (!sum)
    return refuseComputed(at);
  return Value::of(std::move(*sum));
}

/// Distance between the numbers of values loaded in training and in evaluations; at least the
/// number of results of batch.load.
constexpr int64_t kLoads = 16;

void Walk::declare(std::string what) {
  if (std::ranges::find(declared_, what) == declared_.end())
    declared_.push_back(std::move(what));
}

std::optional<Walk::Values> Walk::follow(const At &at) {
  const OpInfo &info = opInfo(at.op);
  bool isOther =
      at.role.segment().kind == SegmentKind::Eval && plan_.job.validation.evalMicroBatchSize != 0;
  compute_.setLoads(isOther ? kLoads : 0);
  if (!countsItsRows(at) || !namesItsBlock(at))
    return std::nullopt;
  if (at.op.epilogue != Epilogue::None)
    return followQuantize(at);
  bool takesUnfollowed = std::ranges::any_of(at.op.operands, [&](ValueId value) {
    return at.role.values[value].kind == Value::Unfollowed;
  });
  bool mayTake = info.sum == SumRole::Passes || info.sum == SumRole::Cuts ||
                 info.sum == SumRole::Combines || info.sum == SumRole::Balances ||
                 info.isOptimizer() || isUnfollowed(at.op.kind);
  if (takesUnfollowed && !mayTake)
    return refuse(at, "takes a value that is not followed");
  auto isUnfollowedTie = [&](const Tie &tie) {
    return at.role.values[tie.value].kind == Value::Unfollowed;
  };
  bool isCounted = at.op.kind == OpKind::Tally && !takesUnfollowed && !at.op.ties.empty() &&
                   std::ranges::none_of(at.op.ties, isUnfollowedTie); // a later op reads this sum
  if (isCounted)
    return followPlain(at);
  bool isFollowed = info.sum == SumRole::Balances || info.isOptimizer();
  if (isUnfollowed(at.op.kind) || (takesUnfollowed && !isFollowed))
    return Values(at.op.results.size(), Value::ofKind(Value::Unfollowed));
  if (info.sum != SumRole::Computes && info.sum != SumRole::Passes &&
      info.sum != SumRole::CountsRows)
    if (std::optional<Values> made = followStep(at); made || difference_)
      return made;
  if (info.collective)
    return followMove(at);
  if (at.op.kind == OpKind::StepReset)
    return checkHyper(at) ? std::optional(Values{Value::of(StepState())}) : std::nullopt;
  if (at.op.kind == OpKind::Join)
    if (std::optional<Values> joined = followJoin(at); joined || difference_)
      return joined;
  return (this->*ruleOf(at.op.kind))(at);
}

/// How the results of an op follow: for most ops from their FACTORS row.
Walk::Rule Walk::ruleOf(OpKind kind) {
  static constexpr std::pair<OpKind, Rule> kRules[] = {
      {OpKind::BatchLoad, &Walk::followLoad},
      {OpKind::InitBlock, &Walk::followInit},
      {OpKind::View, &Walk::followView},
      {OpKind::Pack, &Walk::followPack},
      {OpKind::Transpose, &Walk::followTranspose},
      {OpKind::RunningMean, &Walk::followRunningMean},
      {OpKind::RmsNormPart, &Walk::followNormPart},
      {OpKind::RmsNormPartBwd, &Walk::followNormPart},
      {OpKind::MergeSlices, &Walk::followMergeSlices},
      {OpKind::VocabStats, &Walk::followVocabStats},
      {OpKind::VocabLoss, &Walk::followVocabLoss},
      {OpKind::AttentionPart, &Walk::followAttentionPart},
      {OpKind::AttentionPartBwd, &Walk::followAttentionPart},
      {OpKind::AttentionJoin, &Walk::followAttentionJoin},
      {OpKind::EmbeddingShard, &Walk::followShardRows},
      {OpKind::EmbeddingShardBwd, &Walk::followShardBwd},
      {OpKind::GroupedMatMulBwdSquares, &Walk::followProductSquares},
      {OpKind::Quantize, &Walk::followQuantize},
      {OpKind::QuantizeDelayed, &Walk::followQuantize},
      {OpKind::QuantizeBlocks, &Walk::followQuantize},
      {OpKind::GroupedMatMul, &Walk::followGrouped},
      {OpKind::GroupedMatMulScaled, &Walk::followGrouped},
      {OpKind::GroupedMatMulBwd, &Walk::followGrouped},
      {OpKind::AmaxShard, &Walk::followAmaxShard},
      {OpKind::QuantizeShard, &Walk::followQuantizeShard},
      {OpKind::WeightScales, &Walk::followWeightScales},
      {OpKind::MuonUpdate, &Walk::followMuonUpdate},
      {OpKind::MuonSums, &Walk::followMuonStep},
      {OpKind::MuonStep, &Walk::followMuonStep},
      {OpKind::Stage, &Walk::followCopy},
      {OpKind::Snapshot, &Walk::followCopy}};
  auto rule = std::ranges::find(kRules, kind, &std::pair<OpKind, Rule>::first);
  return rule == std::end(kRules) ? &Walk::followPlain : rule->second;
}

/// Whether the counts that the op reads belong to the rows that it reads.
bool Walk::countsItsRows(const At &at) {
  int counts = positionOf(opInfo(at.op).operands, "counts");
  if (counts < 0 || static_cast<size_t>(counts) >= at.op.operands.size())
    return true;
  const Value &has = operand(at, static_cast<size_t>(counts));
  for (ValueId value : at.op.operands) {
    ValueId rows = at.role.segment().values[value].counts;
    if (rows == kNone || at.role.values[rows].kind == Value::Unknown)
      continue;
    const Value &meant = at.role.values[rows];
    bool isSame = has.isOne() && meant.isOne() && has.state.term == meant.state.term &&
                  has.state->places == meant.state->places;
    if (!isSame)
      return refuse(at, fmt::format("does not take the counts of `%{}`",
                                    at.role.segment().values[value].name));
  }
  return true;
}

/// Whether blocks that the op takes are the one that it names, if it names one. Only views and
/// slices take copies of a value.
bool Walk::namesItsBlock(const At &at) {
  int64_t named = at.op.attrs.empty() ? -1 : at.op.getInt(AttrKey::block);
  bool takesCopies = at.op.kind == OpKind::MergeSlices ||
                     (at.op.kind == OpKind::View && at.op.getInt(AttrKey::coef) != 0);
  for (ValueId value : at.op.operands) {
    const Value &has = at.role.values[value];
    if (named >= 0 && has.isBlock() && has.block->block != named)
      return refuse(at, fmt::format("names another block than '{}'",
                                    plan_.blocks[static_cast<size_t>(has.block->block)].name));
    if (!takesCopies && has.isOne() && has.state->copies != 1)
      return refuse(at, "takes copies of a value");
  }
  return true;
}

std::optional<Walk::Values> Walk::followPlain(const At &at) {
  const Op &op = at.op;
  if (op.kind == OpKind::Cast && operand(at, 0).isBlock())
    return followCast(at, *operand(at, 0).block);
  if (op.kind == OpKind::Cast && operand(at, 0).kind == Value::Largest)
    return Values{operand(at, 0)};
  State step; // operand `state` is the loss scale
  Call call = {op.kind, op.attrs, compute_.mesh().axesOf(op.group), {}, {}, DType::F32};
  call.operands.reserve(op.operands.size()), call.results.reserve(op.results.size());
  for (ValueId value : op.operands) {
    const Value &has = at.role.values[value];
    if (!has.isOne() && has.kind != Value::Step)
      return refuse(at, fmt::format("takes `%{}`, which is not a single value",
                                    at.role.segment().values[value].name));
    if (!has.isOne())
      step.term = terms_.of(Term::Kept, static_cast<int64_t>(CellKind::Step));
    call.operands.push_back({has.isOne() ? &has.state : &step, &typeOf(at, value)});
  }
  for (ValueId value : op.results)
    call.results.push_back(&typeOf(at, value));
  if (int64_t positions = op.getInt(AttrKey::positions); positions != 0) {
    const Type &tokens = terms_.shape(compute_.loaded(0));
    if (tokens.rank == 2 && positions != tokens.shape[1])
      return refuse(at,
                    fmt::format("has {} positions; sequences have {}", positions, tokens.shape[1]));
  }
  // No operand has the size of these. Loads of the same rows may differ only in how they are cut.
  if (op.kind == OpKind::ExpertLoad)
    call.number = call.results[0]->shape[0] << 32 | call.results[0]->shape[1];
  else if (op.kind == OpKind::Fill && !at.role.segment().body)
    call.number = call.results[0]->numel();
  Values made;
  auto isPartial = [](const Operand &operand) {
    const Cover &cover = (*operand.state)->cover;
    const Place *pieces =
        cover.isPiece() ? operand.state->at(static_cast<uint16_t>(cover.axis)) : nullptr;
    return operand.state->isSum() || (pieces ? pieces->kind == Place::Part : !cover.isAll());
  };
  if (op.kind == OpKind::Add && std::ranges::any_of(call.operands, isPartial)) {
    std::optional<Value> sum = added(at, operand(at, 0), operand(at, 1));
    if (!sum)
      return std::nullopt;
    return Values{*sum};
  }
  if (op.kind == OpKind::Cast && isPartial(call.operands[0]) && !operand(at, 0).state.isSum()) {
    State part = operand(at, 0).state;
    part.term = terms_.rounded(typeOf(at, op.results[0]).dtype, part.term);
    return Values{Value::of(std::move(part))};
  }
  std::optional<std::vector<State>> states = compute_.apply(call);
  if (!states)
    return refuseComputed(at);
  for (size_t r = 0; r < states->size(); ++r)
    made.push_back(Value::of(std::move((*states)[r])));
  if (opInfo(op).takesOwnRows() &&
      std::ranges::any_of(made[0].state->places, [](const Place &place) {
        return place.kind == Place::OwnRows || place.kind == Place::Shard;
      }))
    declare(fmt::format("{}: {}", opInfo(op).name, opInfo(op).ownRows));
  return made;
}

/// Turns a value that ranks have gathered along the axes back into one of each rank's own samples.
/// The order of the rows of a sequence does not matter.
bool Walk::takeAll(const At &at, State &state, const std::vector<uint16_t> &axes) {
  const Order order = state->order;
  state.edit().order = Order();
  for (uint16_t axis : axes) {
    bool isData = std::ranges::find(dataAxes_, axis) != dataAxes_.end();
    bool isAll = isData ? (state->pooled & bitOf(axis)) != 0
                        : !state.at(axis) && order.kind == Order::Gathered &&
                              (order.axes & bitOf(axis)) != 0;
    if (!isAll)
      return refuse(at, "does not take the samples of all ranks that have shards of the table");
    state.edit().pooled &= ~bitOf(axis);
    if (isData)
      state.put({axis, Place::Instance});
  }
  return true;
}

/// Looks up rows in a table of which each rank has a shard. Rows in shards of other ranks are
/// zeros, so the result is a partial sum.
std::optional<Walk::Values> Walk::followShardRows(const At &at) {
  const Value &shard = operand(at, 1);
  const State &all = operand(at, 0).state;
  if (!operand(at, 0).isOne() || !shard.isBlock() || shard.block->params.size() != 1)
    return refuse(at, "does not take a block with one table");
  State ids = all;
  if (!takeAll(at, ids, shard.block->axes))
    return std::nullopt;
  Call call = {OpKind::Embedding,
               {},
               {},
               {{&ids, nullptr}, {&shard.block->params[0], nullptr}},
               {nullptr},
               typeOf(at, at.op.results[0]).dtype};
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  State &rows = made->front();
  rows.edit().order = all->order, rows.edit().pooled = all->pooled;
  for (uint16_t axis : shard.block->axes)
    rows.put({axis, Place::Part});
  return Values{Value::of(std::move(rows))};
}

/// The gradient of a table, from the samples of all ranks that have shards of it.
std::optional<Walk::Values> Walk::followShardBwd(const At &at) {
  const Type &type = typeOf(at, at.op.results[0]);
  int64_t b = at.op.getInt(AttrKey::block);
  if (b < 0 || b >= static_cast<int64_t>(plan_.blocks.size()) ||
      paramsOf_[static_cast<size_t>(b)].size() != 1)
    return refuse(at, "does not name a block with one table");
  std::optional<std::vector<uint16_t>> axes =
      divided(plan_.blocks[static_cast<size_t>(b)], type.numel());
  if (!axes)
    return refuse(at, "does not compute a shard of the block");
  State dx = operand(at, 0).state, ids = operand(at, 1).state;
  if (!(dx->order == ids->order))
    return refuse(at, "takes gradients in a different order than tokens");
  if (!takeAll(at, dx, *axes) || !takeAll(at, ids, *axes))
    return std::nullopt;
  Call call = {
      OpKind::EmbeddingBwd, {}, {}, {{&dx, nullptr}, {&ids, nullptr}}, {nullptr}, type.dtype};
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  BlockState block;
  block.block = static_cast<int32_t>(b), block.axes = *axes;
  State &table = made->front();
  for (uint16_t axis : *axes)
    if (table.at(axis))
      table.put({axis, Place::Summed});
  if (!scaleGradient(at, table))
    return std::nullopt;
  block.params.push_back(std::move(table));
  return Values{Value::of(std::move(block))};
}

/// A grouped product whose second result is the sum of squares of the first.
std::optional<Walk::Values> Walk::followProductSquares(const At &at) {
  std::optional<Call> call = callOf(at, at.op.operands.size());
  if (!call)
    return std::nullopt;
  call->kind = OpKind::GroupedMatMulBwd, call->attrs = at.op.attrs;
  call->results = {&typeOf(at, at.op.results[0])};
  std::optional<std::vector<State>> made = compute_.apply(*call);
  if (!made)
    return refuseComputed(at);
  return Values{Value::of(std::move(made->front())), Value::ofKind(Value::Squares)};
}

std::optional<Walk::Values> Walk::followLoad(const At &at) {
  std::vector<uint16_t> slices = compute_.mesh().axesOf(at.op.group);
  Values made;
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    const Type &type = typeOf(at, at.op.results[r]);
    State state;
    state.term = compute_.loaded(static_cast<int64_t>(r));
    state.microbatch = microbatch(at.role);
    for (uint16_t axis : dataAxes_)
      state.put({axis, Place::Instance});
    if (type.rank > 1)
      for (uint16_t axis : slices)
        state.put({axis, Place::Shard, true, false, type.shape[0]});
    state.edit().whole = compute_.mesh().wholeOf(state, type);
    terms_.setShape(state.term, state->whole);
    made.push_back(Value::of(std::move(state)));
  }
  return made;
}

std::optional<Walk::Values> Walk::followBlockView(const At &at, const BlockState &from) {
  const Block &block = plan_.blocks[static_cast<size_t>(from.block)];
  const Type &type = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  BlockState part = from;
  if (coef != 0) {
    part.axes = compute_.mesh().axesOf(at.op.group);
    bool isPart = offset == 0 && from.axes.empty() && coef == type.numel() &&
                  divided(block, type.numel()) == part.axes;
    if (!isPart)
      return refuse(at, "views a part of a block that is not the rank's shard");
    return Values{Value::of(std::move(part))};
  }
  if (!from.axes.empty()) {
    if (offset == 0 && divided(block, type.numel()) == from.axes)
      return Values{Value::of(std::move(part))};
    return refuse(at, "views parameters in a shard");
  }
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(from.block)];
  for (size_t i = 0; i < params.size(); ++i) {
    const Param &param = plan_.params[params[i]];
    if (param.offset == offset && param.type.numel() == type.numel())
      return Values{Value::of(from.params[i])};
  }
  if (offset == 0 && type.numel() == block.numel)
    return Values{Value::of(std::move(part))};
  return refuse(at,
                fmt::format("views elements of block '{}' that are not a parameter", block.name));
}

std::optional<Walk::Values> Walk::followView(const At &at) {
  const Value &x = operand(at, 0);
  if (x.isBlock())
    return followBlockView(at, *x.block);
  if (x.kind == Value::Largest)
    return viewedMaxima(at, *x.maxima);
  if (!x.isOne())
    return refuse(at, "views a value that is not followed");
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  State state = x.state;
  if (std::optional<Values> row = followRow(at, state); row || difference_)
    return row;
  bool isOfMembers = state->order.kind == Order::Gathered && !axes.empty() &&
                     state->order.axes == Mesh::bitsOf(axes);
  if (coef != 0 && isOfMembers) { // the op takes this rank's shard out of a gathered value
    bool isPart = offset == 0 && coef == to.numel() * state->copies &&
                  coef * compute_.mesh().members(axes) == from.numel();
    for (uint16_t axis : axes) {
      isPart &= state.at(axis) == nullptr;
      state = takenApart(std::move(state), axis);
    }
    if (!isPart)
      return refuse(at, "views a part of a value that is already divided");
  } else if (coef != 0) {
    int64_t ofAll = coef * compute_.mesh().members(axes); // elements that ranks have together
    if (ofAll != from.numel()) {
      std::optional<State> piece = pieceOf(at, std::move(state), offset, ofAll);
      if (!piece)
        return std::nullopt;
      state = std::move(*piece);
      offset = 0;
    }
    bool isPart =
        offset == 0 && coef == to.numel() && state->order.kind == Order::Dims && state->copies == 1;
    for (uint16_t axis : axes) {
      isPart &= state.at(axis) == nullptr;
      state.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(state, 1)});
    }
    if (!isPart)
      return refuse(at, "views a part of a value that is already divided");
  } else if (offset != 0 || to.numel() != from.numel()) {
    bool isPlain = state->order.kind == Order::Dims && !state.isSum() &&
                   std::ranges::all_of(state->places, [](const Place &place) {
                     return place.kind == Place::Instance;
                   });
    if (!isPlain)
      return followPiece(at, std::move(state));
    Term term = {Term::Apply, OpKind::View, 0, to.numel(), {}, {state.term}};
    term.attrs.push_back({AttrKey::offset, {.i = offset}});
    TermId some = terms_.of(std::move(term));
    if (!isSpecification_ && !terms_.isOfModel(some)) // the model has no such view
      return followPiece(at, std::move(state));
    state.term = some;
    terms_.setShape(state.term, to);
    state.edit().whole = to;
    return Values{Value::of(std::move(state))};
  }
  if (state->order.kind == Order::Dims) {
    Type whole = compute_.mesh().wholeOf(state, to);
    if (isSpecification_)
      terms_.addView(terms_.bare(state.term), to);
    else if (const Type *viewed = terms_.viewLike(terms_.bare(state.term), to))
      whole = *viewed;
    bool isPadded = state->whole.rank != 0 && whole.numel() != state->whole.numel();
    state.edit().whole = isPadded ? state->whole : whole;
  }
  return Values{Value::of(std::move(state))};
}

/// A row of a buffer to which each op `tally` adds in a row of its own. Returns none, without a
/// refusal, for any other value.
std::optional<Walk::Values> Walk::followRow(const At &at, const State &tallied) {
  std::vector<Contribution> of = contributionsOf(terms_, tallied);
  auto isTally = [&](const Contribution &each) {
    return terms_[each.term].kind == Term::Apply && terms_[each.term].op == OpKind::Tally;
  };
  if (of.empty() || !std::ranges::all_of(of, isTally))
    return std::nullopt;
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), columns = from.shape[from.rank - 1u];
  if (offset % columns != 0 || to.numel() > columns || at.op.getInt(AttrKey::coef) != 0)
    return refuse(at, "does not view a row of tallies");
  std::erase_if(of, [&](const Contribution &each) {
    int64_t slot = 0;
    for (const Attr &attr : terms_[each.term].attrs)
      slot = attr.key == AttrKey::slot ? attr.i : slot;
    return slot != offset / columns;
  });
  State row = tallied;
  row.sum = std::move(of), row.term = kNoTerm;
  row.edit().whole = to;
  return Values{Value::of(std::move(row))};
}

/// The mean over the microbatches of the step so far. The operand must contain each of them once.
std::optional<Walk::Values> Walk::followRunningMean(const At &at) {
  const Value &total = operand(at, 0);
  int64_t now = microbatch(at.role);
  bool isOfAll = total.isOne() && total.state.sum.size() == 1 &&
                 total.state.sum[0].first == at.role.step * kStep && total.state.sum[0].last == now;
  if (!isOfAll)
    return refuse(at, "does not take the sum over the microbatches so far");
  State mean = total.state;
  mean.term = terms_.of({Term::Apply, OpKind::RunningMean, 0, 0, {}, {mean.sum[0].term}});
  mean.sum.clear(), mean.microbatch = now;
  terms_.setShape(mean.term, mean->whole);
  return Values{Value::of(std::move(mean))};
}

std::optional<Walk::Values> Walk::followPack(const At &at) {
  int64_t b = at.op.getInt(AttrKey::block);
  if (std::optional<Values> joined = b < 0 ? followJoin(at) : std::nullopt; joined || difference_)
    return joined;
  auto isSame = [&](ValueId value) { return at.role.values[value] == operand(at, 0); };
  if (const Value &first = operand(at, 0);
      b < 0 && first.isOne() && !first.state.isSum() && first.state->cover.isAll() &&
      first.state->order.kind == Order::Dims && std::ranges::all_of(at.op.operands, isSame)) {
    State copies = first.state;
    copies.edit().copies = static_cast<int64_t>(at.op.operands.size());
    return Values{Value::of(std::move(copies))};
  }
  if (b < 0 || b >= static_cast<int64_t>(plan_.blocks.size()))
    return refuse(at, "does not pack a block");
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(b)];
  if (params.size() != at.op.operands.size())
    return refuse(at, fmt::format("packs {} values; block '{}' has {} parameters",
                                  at.op.operands.size(), plan_.blocks[static_cast<size_t>(b)].name,
                                  params.size()));
  BlockState block;
  block.block = static_cast<int32_t>(b);
  for (size_t i = 0; i < params.size(); ++i) {
    const Value &part = operand(at, i);
    if (!part.isOne() ||
        typeOf(at, at.op.operands[i]).numel() != plan_.params[params[i]].type.numel())
      return refuse(at, fmt::format("packs a value that does not fit parameter '{}'",
                                    plan_.params[params[i]].name));
    block.params.push_back(part.state);
  }
  return Values{Value::of(std::move(block))};
}

std::optional<Walk::Values> Walk::followTranspose(const At &at) {
  if (operand(at, 0).isOne() && isCopyIn8Bits(operand(at, 0).state.term))
    return followTransposed8Bits(at);
  State x = operand(at, 0).state;
  int64_t outer = at.op.getInt(AttrKey::outer), inner = at.op.getInt(AttrKey::inner);
  const Order &order = x->order;
  bool isBack = order.kind == Order::Transposed && order.outer == inner && order.inner == outer;
  isBack |= order.kind == Order::Gathered && !order.isMirrored &&
            compute_.mesh().members(order.axes) == outer &&
            compute_.mesh().localOuter(x, order.outer) == inner;
  if (!operand(at, 0).isOne() || (order.kind != Order::Dims && !isBack))
    return refuse(at, "does not match the order of the elements");
  if (isBack || (outer != 1 && inner != 1)) // otherwise no element moves
    x.edit().order = isBack ? Order() : Order{Order::Transposed, 0, false, outer, inner};
  return Values{Value::of(std::move(x))};
}

std::optional<Walk::Values> Walk::followMergeSlices(const At &at) {
  State x = operand(at, 0).state;
  const Mesh &mesh = compute_.mesh();
  int64_t outer = at.op.getInt(AttrKey::outer), inner = at.op.getInt(AttrKey::inner);
  if (at.op.getBool(AttrKey::inverse)) {
    // With several levels of slices, the op makes slices along those axes that have none yet.
    State others = x;
    std::vector<uint16_t> context = mesh.axesOf(GroupKind::Context);
    std::erase_if(context, [&](uint16_t axis) {
      bool isSlice = x.at(axis) && x.at(axis)->isMirrored;
      if (isSlice)
        others.remove(axis); // this slice divides the positions that the op would divide
      return isSlice;
    });
    bool isPlain = x->order.kind == Order::Dims && mesh.members(context) == inner &&
                   !context.empty() && isInnermostSlice(x, context) && operand(at, 0).isOne() &&
                   outer % x->copies == 0;
    if (!isPlain)
      return refuse(at, "does not slice sequences like the context-parallel ranks");
    x.edit().order = {Order::Gathered, Mesh::bitsOf(context), true,
                      mesh.wholeOuter(others, outer / x->copies), 1};
    return Values{Value::of(std::move(x))};
  }
  bool isOfSlices = x->order.kind == Order::Gathered && x->order.isMirrored && x->copies == 1 &&
                    mesh.members(x->order.axes) == inner &&
                    mesh.localOuter(x, x->order.outer) == outer;
  if (!isOfSlices)
    return refuse(at, "does not match the order of the elements");
  x.edit().order = Order();
  return Values{Value::of(std::move(x))};
}

/// A loss over a divided vocabulary: each rank has statistics of its columns, and the loss combines
/// those of all ranks.
std::optional<Walk::Values> Walk::followVocabStats(const At &at) {
  const State &logits = operand(at, 0).state, &labels = operand(at, 1).state;
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  int64_t columns = logits->whole.rank == 0 ? 0 : logits->whole.shape[logits->whole.rank - 1u];
  bool isByColumns = !axes.empty() && columns != 0;
  int64_t outer = isByColumns ? logits->whole.numel() / columns : 0;
  for (uint16_t axis : axes) {
    const Place *place = logits.at(axis);
    isByColumns &= place != nullptr && place->kind == Place::Shard && !place->isMirrored &&
                   place->outer == outer && !labels.at(axis);
    outer *= compute_.mesh().size(axis);
  }
  if (!isByColumns || logits.microbatch != labels.microbatch || !(logits->cover == labels->cover) ||
      logits->order.kind != Order::Dims || labels->order.kind != Order::Dims)
    return refuse(at, "does not take logits that are cut by columns");
  State stats = logits;
  Term term = {Term::Apply, OpKind::VocabStats, 0, 0, {}, {logits.term, labels.term}};
  for (const Attr &attr : at.op.attrs)
    if (isMeant(OpKind::VocabStats, attr.key))
      term.attrs.push_back(attr);
  stats.term = terms_.of(std::move(term));
  for (uint16_t axis : axes)
    stats.put({axis, Place::Shard});
  stats.edit().whole = Type();
  return Values{Value::of(std::move(stats))};
}

std::optional<Walk::Values> Walk::followVocabLoss(const At &at) {
  const State &stats = operand(at, 0).state, &mask = operand(at, 1).state;
  if (stats.term == kNoTerm || !(stats->cover == mask->cover) ||
      terms_[stats.term].op != OpKind::VocabStats)
    return refuse(at, "does not take statistics of logits");
  for (const Place &place : stats->places)
    if (const Place *other = mask.at(place.axis); other == nullptr || !(*other == place))
      return refuse(at, "does not take the statistics of all columns");
  Term of = terms_[stats.term];
  for (const Attr &attr : of.attrs)
    if (attr.key == AttrKey::valid_cols && at.op.getInt(AttrKey::valid_cols) != attr.i)
      return refuse(at, fmt::format("has {} valid columns, not {}",
                                    at.op.getInt(AttrKey::valid_cols), attr.i));
  Values made;
  for (uint8_t r = 0; r < at.op.results.size(); ++r) {
    State state = stats;
    state.term = terms_.of({Term::Apply,
                            OpKind::CrossEntropy,
                            r,
                            0,
                            of.attrs,
                            {of.operands[0], of.operands[1], mask.term}});
    state.edit().whole = terms_.shape(state.term);
    if (state->whole.rank == 0)
      state.edit().whole = compute_.mesh().wholeOf(state, typeOf(at, at.op.results[r]));
    made.push_back(Value::of(std::move(state)));
  }
  return made;
}

namespace {

/// Operand indices of attention over slices.
struct PartPlaces {
  std::vector<size_t> queries, keys;
  size_t q, qpos, kpos, qdocs, kdocs, samples;
};
template <OpKind kind> PartPlaces placesOf() {
  return {{operandIndex<kind>("q"), operandIndex<kind>("qpos"), operandIndex<kind>("qdocs")},
          {operandIndex<kind>("k"), operandIndex<kind>("v"), operandIndex<kind>("kpos"),
           operandIndex<kind>("kdocs")},
          operandIndex<kind>("q"),
          operandIndex<kind>("qpos"),
          operandIndex<kind>("kpos"),
          operandIndex<kind>("qdocs"),
          operandIndex<kind>("kdocs"),
          operandIndex<kind>("samples")};
}
const PartPlaces &placesOf(OpKind kind) {
  static const PartPlaces kForward = placesOf<OpKind::AttentionPart>(),
                          kBackward = placesOf<OpKind::AttentionPartBwd>();
  return kind == OpKind::AttentionPart ? kForward : kBackward;
}

} // namespace

/// Whether the state is the slices of the member at distance `from`.
bool Walk::Slices::areAt(const State &state, int64_t from) const {
  return std::ranges::all_of(axes, [&](uint16_t axis) {
    const Place *place = state.at(axis);
    return place && place->kind == Place::Shard && place->isMirrored && place->distance == from &&
           (from == 0 || place->isOfSeveral == (axes.size() > 1));
  });
}

bool Walk::findSlices(const At &at, Slices &slices) {
  const PartPlaces &places = placesOf(at.op.kind);
  for (uint16_t axis : compute_.mesh().axesOf(GroupKind::Context))
    if (const Place *place = operand(at, places.q).state.at(axis); place && place->isMirrored)
      slices.axes.push_back(axis);
  if (slices.axes.empty())
    return refuse(at, "does not take slices of sequences");
  slices.count = compute_.mesh().members(slices.axes);
  for (size_t i : places.queries)
    if (!slices.areAt(operand(at, i).state, 0))
      return refuse(at, fmt::format("operand {} is not the rank's slice", i));
  const Place *first = operand(at, places.keys[0]).state.at(slices.axes[0]);
  slices.isGathered = first == nullptr;
  slices.distance = first ? first->distance : 0;
  for (size_t i : places.keys) {
    const State &state = operand(at, i).state;
    auto isWhole = [&](uint16_t axis) { return state.at(axis) == nullptr; };
    bool isLike = slices.isGathered ? std::ranges::all_of(slices.axes, isWhole)
                                    : slices.areAt(state, slices.distance);
    if (!isLike || state->order.kind != Order::Dims)
      return refuse(at, fmt::format("operand {} belongs to different slices than the keys", i));
  }
  TermId positions = compute_.loaded(resultIndex<OpKind::BatchLoad>("more"));
  TermId docs = compute_.loaded(resultIndex<OpKind::BatchLoad>("docs"));
  for (auto [i, needed] : {std::pair(places.qpos, positions), std::pair(places.kpos, positions),
                           std::pair(places.qdocs, docs), std::pair(places.kdocs, docs)})
    if (operand(at, i).state.term != needed)
      return refuse(at, fmt::format("operand {} is not the batch's positions or documents", i));
  int64_t n = slices.count, said = at.op.getInt(AttrKey::slices);
  int64_t by = (at.op.getInt(AttrKey::by) % n + n) % n;
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  bool isOfGroup = axes.size() >= slices.axes.size() &&
                   std::equal(slices.axes.begin(), slices.axes.end(), axes.begin());
  return said == 0 || (said == n && by == slices.distance && isOfGroup) ||
         refuse(at, "has slices that differ from its attributes");
}

/// The results of attention to whole sequences, placed as the slices that ranks have.
Walk::Values Walk::placedBySlices(std::vector<State> made, const Slices &slices, bool isBack) {
  Cover cover;
  if (!slices.isGathered) {
    cover.axis = slices.axes[0];
    cover.slices.assign(static_cast<size_t>(slices.count), false);
    cover.slices[static_cast<size_t>(slices.distance)] = true;
  }
  Values values;
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
        state.put({axis, Place::Shard, true, false, outer, distance, isOfSeveral});
    state.edit().cover = isOfKeys && slices.isGathered ? Cover() : cover;
    values.push_back(Value::of(std::move(state)));
  }
  return values;
}

std::optional<Walk::Values> Walk::followAttentionPart(const At &at) {
  const PartPlaces &places = placesOf(at.op.kind);
  Slices slices;
  bool isBack = at.op.kind == OpKind::AttentionPartBwd;
  for (ValueId value : at.op.operands)
    if (!at.role.values[value].isOne())
      return refuse(at, "takes an operand that is not a single value");
  if (!findSlices(at, slices))
    return std::nullopt;
  int64_t n = slices.count, positions = at.op.getInt(AttrKey::positions);
  if (const Type &tokens = terms_.shape(compute_.loaded(0));
      positions != 0 && positions != tokens.shape[1])
    return refuse(at, "has a number of positions that differs from the sequence length");
  std::vector<size_t> taken; // indices of the operands that op `attention` has too, in its order
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    if (i != places.qpos && i != places.kpos && i != places.kdocs)
      taken.push_back(i);
  std::vector<State> states;
  for (size_t i : taken) {
    states.push_back(operand(at, i).state);
    for (uint16_t axis : slices.axes)
      states.back().remove(axis);
  }
  std::vector<Type> types;
  // The types that attention to whole sequences would return.
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    types.push_back(typeOf(at, at.op.results[r]));
    bool isStatistics = !isBack && r == 1, isWhole = isBack && r > 0 && slices.isGathered;
    types.back().shape[isStatistics ? 2 : 1] *= isWhole ? 1 : n;
  }
  Call call = {isBack ? OpKind::AttentionBwd : OpKind::Attention,
               {},
               compute_.mesh().axesOf(at.op.group),
               {},
               {},
               DType::F32};
  // The call attends to whole sequences, so its group lacks the axes that slice them.
  std::erase_if(call.group, [&](uint16_t axis) {
    return std::ranges::find(slices.axes, axis) != slices.axes.end();
  });
  for (const Attr &attr : at.op.attrs)
    if (attr.key != AttrKey::by)
      call.attrs.push_back(attr);
  for (size_t i = 0; i < taken.size(); ++i)
    call.operands.push_back({&states[i], &typeOf(at, at.op.operands[taken[i]])});
  for (const Type &type : types)
    call.results.push_back(&type);
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  return placedBySlices(std::move(*made), slices, isBack);
}

std::optional<Walk::Values> Walk::followAttentionJoin(const At &at) {
  std::vector<State> states;
  for (size_t i = 0; i < 4; ++i)
    states.push_back(operand(at, i).state);
  bool isOfOne = states[0]->cover == states[1]->cover && states[2]->cover == states[3]->cover &&
                 terms_.bare(states[0].term) == terms_.bare(states[2].term) &&
                 terms_.bare(states[1].term) == terms_.bare(states[3].term) &&
                 !states[0]->cover.isAll();
  if (!isOfOne)
    return refuse(at, "does not join two parts of one attention");
  Values made;
  for (size_t r = 0; r < 2; ++r) {
    states[r + 2].term = states[r].term;
    std::optional<State> sum = compute_.added(states[r], states[r + 2]);
    if (!sum)
      return refuseComputed(at);
    sum->term = terms_.rounded(typeOf(at, at.op.results[r]).dtype, terms_.bare(sum->term));
    made.push_back(Value::of(std::move(*sum)));
  }
  return made;
}

} // namespace shardc::plan::spec
