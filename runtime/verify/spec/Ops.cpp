// Ops whose effect does not follow from a FACTORS row: loads, views, orders of elements, losses
// over a divided vocabulary, attention of slices.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

std::optional<Value> Walk::added(const At &at, const Value &a, const Value &b) {
  if (a.isBlock() && b.isBlock()) {
    BlockState sum = *b.block;
    if (a.block->block != sum.block || a.block->axes != sum.axes)
      return refuse(at, "adds another block, or part of it"), std::nullopt;
    for (size_t p = 0; p < sum.params.size(); ++p) {
      std::optional<State> each = compute_.added(a.block->params[p], sum.params[p]);
      if (!each)
        return refuse(at, compute_.why()), std::nullopt;
      sum.params[p] = std::move(*each);
    }
    return Value::of(std::move(sum));
  }
  if (!a.isOne() || !b.isOne())
    return refuse(at, "adds to a value of which nothing is known"), std::nullopt;
  std::optional<State> sum = compute_.added(a.state, b.state);
  if (!sum)
    return refuse(at, compute_.why()), std::nullopt;
  return Value::of(std::move(*sum));
}

void Walk::declare(std::string what) {
  if (std::ranges::find(declared_, what) == declared_.end())
    declared_.push_back(std::move(what));
}

std::optional<Walk::Values> Walk::follow(const At &at) {
  const OpInfo &info = opInfo(at.op);
  if (!countsItsRows(at))
    return std::nullopt;
  if (at.op.epilogue != Epilogue::None)
    return followQuantize(at);
  bool takesUnreported = std::ranges::any_of(at.op.operands, [&](ValueId value) {
    return at.role.values[value].kind == Value::Unreported;
  });
  bool mayTake = info.sum == SumRole::Passes || info.sum == SumRole::Cuts ||
                 info.sum == SumRole::Combines || info.sum == SumRole::Balances ||
                 info.isOptimizer() || isUnreported(at.op.kind);
  if (takesUnreported && !mayTake)
    return refuse(at, "takes what is not followed"), std::nullopt;
  bool isFollowed = info.sum == SumRole::Balances || info.isOptimizer();
  if (isUnreported(at.op.kind) || (takesUnreported && !isFollowed))
    return Values(at.op.results.size(), Value::ofKind(Value::Unreported));
  if (info.sum != SumRole::Computes && info.sum != SumRole::Passes &&
      info.sum != SumRole::CountsRows)
    if (std::optional<Values> made = followStep(at); made || difference_)
      return made;
  if (info.collective)
    return followMove(at);
  if (at.op.kind == OpKind::Join)
    if (std::optional<Values> joined = followJoin(at); joined || difference_)
      return joined;
  static constexpr std::pair<OpKind, Rule> kRules[] = {
      {OpKind::BatchLoad, &Walk::followLoad},
      {OpKind::View, &Walk::followView},
      {OpKind::Pack, &Walk::followPack},
      {OpKind::Transpose, &Walk::followTranspose},
      {OpKind::RmsNormPart, &Walk::followNormPart},
      {OpKind::RmsNormPartBwd, &Walk::followNormPart},
      {OpKind::MergeSlices, &Walk::followMergeSlices},
      {OpKind::VocabStats, &Walk::followVocabStats},
      {OpKind::VocabLoss, &Walk::followVocabLoss},
      {OpKind::AttentionPart, &Walk::followAttentionPart},
      {OpKind::AttentionPartBwd, &Walk::followAttentionPart},
      {OpKind::AttentionJoin, &Walk::followAttentionJoin},
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
      {OpKind::Stage, &Walk::followCopy},
      {OpKind::Snapshot, &Walk::followCopy}};
  auto rule = std::ranges::find(kRules, at.op.kind, &std::pair<OpKind, Rule>::first);
  return rule == std::end(kRules) ? followPlain(at) : (this->*rule->second)(at);
}

/// Whether counts that the op takes are those of the rows that it takes.
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
      return refuse(at, fmt::format("takes other counts than those of `%{}`",
                                    at.role.segment().values[value].name));
  }
  return true;
}

std::optional<Walk::Values> Walk::followPlain(const At &at) {
  const Op &op = at.op;
  if (op.kind == OpKind::Cast && operand(at, 0).isBlock()) {
    BlockState block = *operand(at, 0).block;
    for (State &param : block.params) // types of sums of gradients are the job's choice
      if (!param.isSum() && param.microbatch < 0)
        param.term = terms_.rounded(typeOf(at, op.results[0]).dtype, param.term);
    return Values{Value::of(std::move(block))};
  }
  if (op.kind == OpKind::Cast && operand(at, 0).kind == Value::Largest)
    return Values{operand(at, 0)};
  State step; // operand `state` is the loss scale
  step.term = terms_.of(Term::Kept, static_cast<int64_t>(CellKind::Step));
  Call call = {op.kind, op.attrs, compute_.mesh().axesOf(op.group), {}, {}, DType::F32};
  for (ValueId value : op.operands) {
    const Value &has = at.role.values[value];
    if (!has.isOne() && has.kind != Value::Step)
      return refuse(at, fmt::format("takes `%{}`, which is no single value",
                                    at.role.segment().values[value].name)),
             std::nullopt;
    call.operands.push_back({has.isOne() ? &has.state : &step, &typeOf(at, value)});
  }
  for (ValueId value : op.results)
    call.results.push_back(&typeOf(at, value));
  const Type &tokens = terms_.shape(terms_.of(Term::Loaded, 0));
  int64_t positions = op.getInt(AttrKey::positions);
  if (positions != 0 && tokens.rank == 2 && positions != tokens.shape[1])
    return refuse(at, fmt::format("is of {} positions, where sequences have {}", positions,
                                  tokens.shape[1])),
           std::nullopt;
  if (op.kind == OpKind::Fill && !at.role.segment().body)
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
    return refuse(at, compute_.why()), std::nullopt;
  for (size_t r = 0; r < states->size(); ++r)
    made.push_back(Value::of(std::move((*states)[r])));
  if (opInfo(op).takesOwnRows() &&
      std::ranges::any_of(made[0].state->places, [](const Place &place) {
        return place.kind == Place::OwnRuns || place.kind == Place::Shard;
      }))
    declare(fmt::format("{}: {}", opInfo(op).name, opInfo(op).ownRows));
  return made;
}

/// The gradient of a table, of the samples of all ranks that have shards of it.
std::optional<Walk::Values> Walk::followShardBwd(const At &at) {
  const Type &type = typeOf(at, at.op.results[0]);
  int64_t b = at.op.getInt(AttrKey::block);
  if (b < 0 || b >= static_cast<int64_t>(plan_.blocks.size()) ||
      paramsOf_[static_cast<size_t>(b)].size() != 1)
    return refuse(at, "names no block of one table"), std::nullopt;
  std::vector<State> states;
  std::optional<std::vector<uint16_t>> axes =
      divided(plan_.blocks[static_cast<size_t>(b)], type.numel());
  for (size_t i = 0; i < at.op.operands.size(); ++i) {
    states.push_back(operand(at, i).state);
    for (uint16_t axis : axes.value_or(std::vector<uint16_t>())) {
      const Place *place = states.back().at(axis);
      if (place == nullptr || place->kind != Place::Pooled)
        return refuse(at, "does not take the samples of all ranks with shards"), std::nullopt;
      states.back().put({axis, Place::Instance});
    }
  }
  Call call = {OpKind::EmbeddingBwd, {}, {}, {}, {nullptr}, type.dtype};
  for (const State &state : states)
    call.operands.push_back({&state, nullptr});
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!axes || !made)
    return refuse(at, axes ? compute_.why() : "makes no shard of the block"), std::nullopt;
  BlockState block;
  block.block = static_cast<int32_t>(b), block.axes = *axes;
  double scale = at.op.getFloat(AttrKey::scale);
  for (uint16_t axis : *axes) {
    made->front().put({axis, Place::Summed});
    if (at.op.getFloat(AttrKey::scale) != 1) {
      made->front().edit().multiple.divide(plan_.mesh[axis].size);
      scale *= static_cast<double>(plan_.mesh[axis].size);
    }
  }
  if (std::abs(scale - 1) > 1e-12)
    return refuse(at, "has another scale than the mean over ranks"), std::nullopt;
  block.params.push_back(std::move(made->front()));
  return Values{Value::of(std::move(block))};
}

/// A product, and the sum of its squares.
std::optional<Walk::Values> Walk::followProductSquares(const At &at) {
  Call call = {OpKind::GroupedMatMulBwd,
               at.op.attrs,
               compute_.mesh().axesOf(at.op.group),
               {},
               {},
               DType::F32};
  for (ValueId value : at.op.operands) {
    if (!at.role.values[value].isOne())
      return refuse(at, "takes what is no single value"), std::nullopt;
    call.operands.push_back({&at.role.values[value].state, &typeOf(at, value)});
  }
  call.results = {&typeOf(at, at.op.results[0])};
  std::optional<std::vector<State>> made = compute_.apply(call);
  if (!made)
    return refuse(at, compute_.why()), std::nullopt;
  return Values{Value::of(std::move(made->front())), Value::ofKind(Value::Squares)};
}

std::optional<Walk::Values> Walk::followLoad(const At &at) {
  std::vector<uint16_t> slices = compute_.mesh().axesOf(at.op.group);
  Values made;
  for (size_t r = 0; r < at.op.results.size(); ++r) {
    const Type &type = typeOf(at, at.op.results[r]);
    State state;
    state.term = terms_.of(Term::Loaded, static_cast<int64_t>(r));
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
      return refuse(at, "views another part of a block than ranks have"), std::nullopt;
    return Values{Value::of(std::move(part))};
  }
  if (!from.axes.empty()) {
    if (offset == 0 && divided(block, type.numel()) == from.axes)
      return Values{Value::of(std::move(part))};
    return refuse(at, "views parameters in a shard"), std::nullopt;
  }
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(from.block)];
  for (size_t i = 0; i < params.size(); ++i) {
    const Param &param = plan_.params[params[i]];
    if (param.offset == offset && param.type.numel() == type.numel())
      return Values{Value::of(from.params[i])};
  }
  if (offset == 0 && type.numel() == block.numel)
    return Values{Value::of(std::move(part))};
  return refuse(at, fmt::format("views elements of block '{}' that are no parameter", block.name)),
         std::nullopt;
}

std::optional<Walk::Values> Walk::followView(const At &at) {
  const Value &x = operand(at, 0);
  if (x.isBlock())
    return followBlockView(at, *x.block);
  if (x.kind == Value::Largest)
    return viewedMaxima(at, *x.maxima);
  if (!x.isOne())
    return refuse(at, "views what is not followed"), std::nullopt;
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  State state = x.state;
  if (coef != 0) {
    bool isPart = offset == 0 && coef == to.numel() && state->order.kind == Order::Dims;
    for (uint16_t axis : axes) {
      isPart &= state.at(axis) == nullptr;
      state.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(state, 1)});
    }
    if (!isPart)
      return refuse(at, "views a part of what is in parts already"), std::nullopt;
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
    if (!isSpecification_ && !terms_.isOfModel(some)) // the model views no such elements
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

std::optional<Walk::Values> Walk::followPack(const At &at) {
  int64_t b = at.op.getInt(AttrKey::block);
  if (std::optional<Values> joined = b < 0 ? followJoin(at) : std::nullopt; joined || difference_)
    return joined;
  if (b < 0 || b >= static_cast<int64_t>(plan_.blocks.size()))
    return refuse(at, "packs what is no block"), std::nullopt;
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(b)];
  if (params.size() != at.op.operands.size())
    return refuse(at, fmt::format("packs {} values where block '{}' has {} parameters",
                                  at.op.operands.size(), plan_.blocks[static_cast<size_t>(b)].name,
                                  params.size())),
           std::nullopt;
  BlockState block;
  block.block = static_cast<int32_t>(b);
  for (size_t i = 0; i < params.size(); ++i) {
    const Value &part = operand(at, i);
    if (!part.isOne() ||
        typeOf(at, at.op.operands[i]).numel() != plan_.params[params[i]].type.numel())
      return refuse(at, fmt::format("packs something else than parameter '{}' needs",
                                    plan_.params[params[i]].name)),
             std::nullopt;
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
            plan_.mesh[order.axis].size == outer &&
            compute_.mesh().localOuter(x, order.outer) == inner;
  if (!operand(at, 0).isOne() || (order.kind != Order::Dims && !isBack))
    return refuse(at, "is not of the order in which the elements lie"), std::nullopt;
  x.edit().order = isBack ? Order() : Order{Order::Transposed, 0, false, outer, inner};
  return Values{Value::of(std::move(x))};
}

std::optional<Walk::Values> Walk::followMergeSlices(const At &at) {
  State x = operand(at, 0).state;
  const Mesh &mesh = compute_.mesh();
  int64_t outer = at.op.getInt(AttrKey::outer), inner = at.op.getInt(AttrKey::inner);
  if (at.op.getBool(AttrKey::inverse)) {
    // Of several levels of slices, it makes those along which there are none yet.
    State others = x;
    std::vector<uint16_t> context = mesh.axesOf(GroupKind::Context);
    std::erase_if(context, [&](uint16_t axis) {
      bool isSlice = x.at(axis) && x.at(axis)->isMirrored;
      if (isSlice)
        others.remove(axis); // which cuts the same positions
      return isSlice;
    });
    bool isPlain = x->order.kind == Order::Dims && context.size() == 1 &&
                   mesh.size(context[0]) == inner && isInnermostSlice(x, context[0]) &&
                   operand(at, 0).isOne();
    if (!isPlain)
      return refuse(at, "does not make the slices of members"), std::nullopt;
    x.edit().order = {Order::Gathered, context[0], true, mesh.wholeOuter(others, outer), 1};
    return Values{Value::of(std::move(x))};
  }
  bool isOfSlices = x->order.kind == Order::Gathered && x->order.isMirrored &&
                    mesh.size(x->order.axis) == inner &&
                    mesh.localOuter(x, x->order.outer) == outer;
  if (!isOfSlices)
    return refuse(at, "is not of the order in which the elements lie"), std::nullopt;
  x.edit().order = Order();
  return Values{Value::of(std::move(x))};
}

/// A loss over a divided vocabulary: each rank has statistics of its columns, and the loss is made
/// from those of all.
std::optional<Walk::Values> Walk::followVocabStats(const At &at) {
  const State &logits = operand(at, 0).state, &labels = operand(at, 1).state;
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  int64_t columns = logits->whole.rank == 0 ? 0 : logits->whole.shape[logits->whole.rank - 1u];
  if (axes.size() != 1 || columns == 0)
    return refuse(at, "has no single axis of columns"), std::nullopt;
  const Place *place = logits.at(axes[0]);
  bool isByColumns = place != nullptr && place->kind == Place::Shard && !place->isMirrored &&
                     place->outer == logits->whole.numel() / columns && !labels.at(axes[0]);
  if (!isByColumns || logits.microbatch != labels.microbatch || !(logits->cover == labels->cover) ||
      logits->order.kind != Order::Dims || labels->order.kind != Order::Dims)
    return refuse(at, "does not take logits that are cut by columns"), std::nullopt;
  State stats = logits;
  Term term = {Term::Apply, OpKind::VocabStats, 0, 0, {}, {logits.term, labels.term}};
  for (const Attr &attr : at.op.attrs)
    if (isMeant(OpKind::VocabStats, attr.key))
      term.attrs.push_back(attr);
  stats.term = terms_.of(std::move(term));
  stats.put({axes[0], Place::Shard});
  stats.edit().whole = Type();
  return Values{Value::of(std::move(stats))};
}

std::optional<Walk::Values> Walk::followVocabLoss(const At &at) {
  const State &stats = operand(at, 0).state, &mask = operand(at, 1).state;
  if (stats.term == kNoTerm || !(stats->cover == mask->cover) ||
      terms_[stats.term].op != OpKind::VocabStats)
    return refuse(at, "does not take statistics of logits"), std::nullopt;
  for (const Place &place : stats->places)
    if (const Place *other = mask.at(place.axis); other == nullptr || !(*other == place))
      return refuse(at, "does not take the statistics of all columns"), std::nullopt;
  Term of = terms_[stats.term];
  for (const Attr &attr : of.attrs)
    if (attr.key == AttrKey::valid_cols && at.op.getInt(AttrKey::valid_cols) != attr.i)
      return refuse(at, fmt::format("has {} valid columns, not {}",
                                    at.op.getInt(AttrKey::valid_cols), attr.i)),
             std::nullopt;
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

/// Where attention of slices has its operands.
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

/// Finds the axis along which sequences are sliced, and the distance of the member whose keys these
/// are; or that the keys of all slices were gathered.
bool Walk::findSlices(const At &at, int &axis, int64_t &distance, bool &isGathered) {
  const PartPlaces &places = placesOf(at.op.kind);
  for (const Place &place : operand(at, places.q).state->places)
    if (place.kind == Place::Shard && place.isMirrored)
      axis = place.axis;
  if (axis < 0)
    return refuse(at, "takes no slices of sequences");
  auto sliceOf = [&](size_t i) {
    const Place *place = operand(at, i).state.at(static_cast<uint16_t>(axis));
    return place && place->kind == Place::Shard && place->isMirrored ? place : nullptr;
  };
  for (size_t i : places.queries)
    if (sliceOf(i) == nullptr || sliceOf(i)->distance != 0)
      return refuse(at, fmt::format("operand {} is not the rank's slice", i));
  const Place *first = sliceOf(places.keys[0]);
  isGathered = first == nullptr;
  distance = first ? first->distance : 0;
  for (size_t i : places.keys) {
    const State &state = operand(at, i).state;
    const Place *place = sliceOf(i);
    bool isLike = isGathered ? state.at(static_cast<uint16_t>(axis)) == nullptr
                             : place && place->distance == distance;
    if (!isLike || state->order.kind != Order::Dims)
      return refuse(at, fmt::format("operand {} is of other slices than the keys", i));
  }
  TermId positions = terms_.of(Term::Loaded, resultIndex<OpKind::BatchLoad>("more"));
  TermId docs = terms_.of(Term::Loaded, resultIndex<OpKind::BatchLoad>("docs"));
  for (auto [i, needed] : {std::pair(places.qpos, positions), std::pair(places.kpos, positions),
                           std::pair(places.qdocs, docs), std::pair(places.kdocs, docs)})
    if (operand(at, i).state.term != needed)
      return refuse(at, fmt::format("operand {} is not the positions or documents", i));
  int64_t n = plan_.mesh[static_cast<size_t>(axis)].size, slices = at.op.getInt(AttrKey::slices);
  int64_t by = (at.op.getInt(AttrKey::by) % n + n) % n;
  std::vector<uint16_t> axes = compute_.mesh().axesOf(at.op.group);
  bool isSaid = !axes.empty() && axes[0] == axis;
  return slices == 0 || (slices == n && by == distance && isSaid) ||
         refuse(at, "has other slices than it says");
}

std::optional<Walk::Values> Walk::followAttentionPart(const At &at) {
  const PartPlaces &places = placesOf(at.op.kind);
  int found = -1;
  int64_t distance = 0;
  bool isGathered = false, isBack = at.op.kind == OpKind::AttentionPartBwd;
  for (ValueId value : at.op.operands)
    if (!at.role.values[value].isOne())
      return refuse(at, "takes what is no single value"), std::nullopt;
  if (!findSlices(at, found, distance, isGathered))
    return std::nullopt;
  auto axis = static_cast<uint16_t>(found);
  int64_t n = plan_.mesh[axis].size, positions = at.op.getInt(AttrKey::positions);
  if (const Type &tokens = terms_.shape(terms_.of(Term::Loaded, 0));
      positions != 0 && positions != tokens.shape[1])
    return refuse(at, "is of other positions than sequences have"), std::nullopt;
  std::vector<size_t> taken; // as attention takes them
  for (size_t i = 0; i < at.op.operands.size(); ++i)
    if (i != places.qpos && i != places.kpos && i != places.kdocs)
      taken.push_back(i);
  std::vector<State> states;
  for (size_t i : taken) {
    states.push_back(operand(at, i).state);
    states.back().remove(axis);
  }
  std::vector<Type> types;
  for (size_t r = 0; r < at.op.results.size(); ++r) { // attention of whole sequences
    types.push_back(typeOf(at, at.op.results[r]));
    bool isStatistics = !isBack && r == 1, isWhole = isBack && r > 0 && isGathered;
    types.back().shape[isStatistics ? 2 : 1] *= isWhole ? 1 : n;
  }
  Call call = {isBack ? OpKind::AttentionBwd : OpKind::Attention,
               {},
               compute_.mesh().axesOf(at.op.group),
               {},
               {},
               DType::F32};
  std::erase(call.group, axis); // the slices are those of its operands
  for (const Attr &attr : at.op.attrs)
    if (attr.key != AttrKey::by)
      call.attrs.push_back(attr);
  for (size_t i = 0; i < taken.size(); ++i)
    call.operands.push_back({&states[i], &typeOf(at, at.op.operands[taken[i]])});
  for (const Type &type : types)
    call.results.push_back(&type);
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuse(at, compute_.why()), std::nullopt;
  Cover cover;
  if (!isGathered) {
    cover.axis = axis;
    cover.slices.assign(static_cast<size_t>(n), false);
    cover.slices[static_cast<size_t>(distance)] = true;
  }
  Values values;
  for (size_t r = 0; r < made->size(); ++r) {
    State &state = (*made)[r];
    const Type &whole = state->whole;
    bool isStatistics = !isBack && r == 1, isOfKeys = isBack && r > 0;
    if (isOfKeys && isGathered)
      state.put({axis, Place::Part});
    else
      state.put({axis, Place::Shard, true, false,
                 isStatistics ? whole.shape[0] * whole.shape[1] : whole.shape[0],
                 isOfKeys ? distance : 0});
    state.edit().cover = isOfKeys && isGathered ? Cover() : cover;
    values.push_back(Value::of(std::move(state)));
  }
  return values;
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
    return refuse(at, "does not join two parts of one attention"), std::nullopt;
  Values made;
  for (size_t r = 0; r < 2; ++r) {
    states[r + 2].term = states[r].term;
    std::optional<State> sum = compute_.added(states[r], states[r + 2]);
    if (!sum)
      return refuse(at, compute_.why()), std::nullopt;
    sum->term = terms_.rounded(typeOf(at, at.op.results[r]).dtype, terms_.bare(sum->term));
    made.push_back(Value::of(std::move(*sum)));
  }
  return made;
}

} // namespace shardc::plan::spec
