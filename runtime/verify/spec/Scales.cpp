// Handles 8-bit values and their scales. A quantised value has a term of its own, with its format
// and the way in which it is scaled. In the delayed recipe, a value is scaled by a slot of amaxes.
// In all microbatches and ranks, it must be the value whose amax the slot records.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/Float8.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
namespace {

/// Whether the attribute only selects a slot of amaxes, and so is not part of the value.
bool isOfSlot(const Attr &attr) {
  return attr.key == AttrKey::slot || attr.key == AttrKey::y_slot || attr.key == AttrKey::b_slot;
}

int64_t formatOf(DType type, std::optional<ScaleBlocks> blocks) {
  return static_cast<int64_t>(type) +
         (blocks ? (static_cast<int64_t>(*blocks) + 1) * 256 : int64_t{0});
}

/// The entry of consecutive slots, which is added if it is new; null if others overlap these slots.
Maxima::Entry *entryOf(Maxima &maxima, int64_t slot, const Maxima::Entry &entry) {
  auto [found, isNew] = maxima.entries.try_emplace(slot, entry);
  auto next = std::next(found);
  bool isApart = (next == maxima.entries.end() || next->first >= slot + entry.count) &&
                 (found == maxima.entries.begin() ||
                  std::prev(found)->first + std::prev(found)->second.count <= slot);
  return isApart && found->second.count == entry.count ? &found->second : nullptr;
}

} // namespace

/// The parameter, or another number of the optimizer, as a cell of this type stores it.
TermId Walk::inType(DType type, TermId term) {
  return type == DType::F8E4M3 ? weightIn8Bits(term, 0) : terms_.rounded(type, term);
}

/// The 8-bit copy of a weight, scaled by the amax of the whole weight. Result 1 is its scale.
TermId Walk::weightIn8Bits(TermId weight, uint8_t result) {
  TermId amax = terms_.of({Term::Apply, OpKind::Amax, 0, 0, {}, {weight}});
  TermId term = terms_.of({Term::Apply,
                           OpKind::Quantize,
                           result,
                           formatOf(DType::F8E4M3, std::nullopt),
                           {},
                           {weight, amax}});
  terms_.setShape(term, result == 0 ? terms_.shape(weight) : Type());
  return term;
}

/// Whether the term is an 8-bit copy with one scale, in the value's own order of elements.
bool Walk::isCopyIn8Bits(TermId term) const {
  const Term &of = terms_[term];
  return of.kind == Term::Apply && of.op == OpKind::Quantize && of.attrs.empty() &&
         of.result == 0 && of.operands.size() == 2;
}

/// The amax by which the value is scaled: the current one, or that of a slot from earlier steps.
State Walk::amaxOf(const At &at, const State &x, size_t from, int64_t slot) {
  const Value &amax = operand(at, from);
  State largest = amax.state;
  if (amax.kind == Value::Largest && amax.maxima->kind != Maxima::Seen) {
    useSlots(at, x, amax, {slot});
    return kept(CellKind::Amax, typeOf(at, at.op.operands[from]));
  }
  if (amax.kind == Value::Largest) { // recorded by an earlier op of the step
    auto found = amax.maxima->entries.find(slot);
    if (found == amax.maxima->entries.end())
      return refuse(at, "takes an amax that no op has recorded");
    largest = found->second.of;
  } else if (!amax.isOne()) {
    return refuse(at, "does not take amaxes");
  }
  for (uint16_t axis : mesh_.axesOf(GroupKind::Context))
    if (largest.is(axis, Place::Largest) && x.is(axis, Place::Shard)) {
      largest.remove(axis);
      declare("quantize: each rank has separate scales for its slices of sequences");
    }
  return largest;
}

/// Checks that in all steps and evaluations, the slots scale the same value.
void Walk::useSlots(const At &at, const State &x, const Value &amax, Slots slots) {
  bool isEval = at.role.segment().kind == SegmentKind::Eval;
  int64_t next = isSpecification_ ? static_cast<int64_t>(goals_.steps.size()) : at.role.step;
  if (!isSpecification_ && isEval)
    ++next; // an evaluation comes after the update
  if (amax.kind != Value::Largest || amax.maxima->kind != Maxima::Expected ||
      amax.maxima->step != next) {
    refuse(at, "takes amaxes of a different step");
    return;
  }
  SlotOf slot(at.role.index, slots.first);
  Scaled of(x.term, slots.count);
  if (isEval && !isSpecification_) {
    auto trained = scaled_.find(slot);
    bool isSame = trained != scaled_.end() && trained->second.second == of.second &&
                  next < static_cast<int64_t>(goals_.steps.size()) &&
                  goals_.steps[static_cast<size_t>(next)].evaluatedScales.contains(
                      {nextTerm(trained->second.first), of.first});
    if (!isSame)
      refuse(at, "uses amax slot {} for a different value than in training", slots.first);
  } else if ((isEval ? scaled_ : uses_).try_emplace(slot, of).first->second != of) {
    refuse(at, "uses amax slot {} for two values", slots.first);
  }
}

/// Records in slots the amax of a value of one microbatch.
void Walk::see(const At &at, const State &x, Value &seen, Slots slots) {
  std::optional<Maxima> maxima = maximaOf(seen, Maxima::Seen);
  if (!maxima) {
    refuse(at, "records amaxes in a value that has none");
    return;
  }
  Maxima::Entry entry = {x, slots.count, {}};
  entry.of.microbatch = -1;
  Maxima::Entry *before = entryOf(*maxima, slots.first, entry);
  if (!before || !(before->of == entry.of)) {
    refuse(at, "records two values in amax slot {}", slots.first);
    return;
  }
  // A maximum does not depend on their order, and recording one of them again does not change it.
  if (x.microbatch >= 0)
    addContributions(before->seen, {{x.term, x.microbatch, x.microbatch}});
  seen = Value(std::move(*maxima));
}

/// Declares a difference if a shard ends within a block of scales, since ranks then have other
/// blocks than the whole value.
void Walk::checkBlockEnds(const At &at, const State &x, ScaleBlocks blocks, bool isTransposed) {
  Extents block = shardc::blockOf(blocks);
  if (isTransposed)
    std::swap(block.rows, block.cols);
  int64_t cols = x->whole.rank == 0 ? 0 : x->whole.shape[x->whole.rank - 1u];
  if (cols == 0) {
    refuse(at, "takes a value with unknown extents");
    return;
  }
  int64_t rows = x->whole.numel() / cols;
  for (const Place *place : cutsOf(x)) {
    bool isOfRows = place->outer < rows;
    int64_t before = isOfRows ? place->outer : place->outer / rows;
    int64_t extent =
        (isOfRows ? rows : cols) / before / mesh_.size(place->axis) / (place->isMirrored ? 2 : 1);
    int64_t size = isOfRows ? block.rows : block.cols;
    if (size > 1 && extent % size != 0)
      declare(fmt::format("quantize_blocks: ranks along {} have {} elements, which is not a "
                          "multiple of the block size {}",
                          mesh_.name(place->axis), extent, size));
  }
}

/// The 8-bit copy of a value, and its scale. With one scale, `amax` gives it; otherwise blocks have
/// scales. The types are this rank's.
std::pair<State, State> Walk::quantised(const At &at, const State &x, const State *amax,
                                        bool isTransposed, const Type &type,
                                        const Type &scaleType) {
  Call call = {amax ? OpKind::Quantize : OpKind::QuantizeBlocks,
               {},
               {},
               {{&x, nullptr}},
               {&type},
               DType::F32};
  std::optional<ScaleBlocks> blocks;
  if (amax) {
    call.operands.push_back({amax, nullptr});
  } else {
    int64_t cols = type.shape[type.rank - 1u];
    blocks = blocksOf(scaleType.dtype == DType::U8, {scaleType.shape[0], scaleType.shape[1]},
                      {type.numel() / cols, cols});
    if (blocks)
      checkBlockEnds(at, x, *blocks, isTransposed);
    else
      refuse(at, "has scales that fit no block size");
  }
  call.number = formatOf(type.dtype, blocks);
  if (isTransposed)
    call.attrs.push_back({AttrKey::transposed, {.i = 1}});
  State copy = computed(at, call)[0], scale = copy;
  Term term = terms_[scale.term];
  term.result = 1;
  if (amax)
    term.attrs.clear(); // a scale is the same for both copies
  scale.term = terms_.of(std::move(term));
  std::erase_if(scale.edit().places, [](const Place &place) { return place.kind == Place::Shard; });
  scale.edit().whole = scaleType;
  return {copy, scale};
}

/// Computes the results of the producer that the op quantises, followed by the others.
Values Walk::followProducer(const At &at, size_t operands) {
  const OpInfo &info = opInfo(at.op), &producer = opInfo(info.form->producer);
  if (!takesOnes(at, operands))
    return {};
  Call call = callOf(at, info.form->producer, operands);
  call.results.clear();
  call.between = call.operands[0].type->dtype;
  if (producer.isStep)
    return {madeAgain(at, call)};
  const auto count = static_cast<size_t>(std::popcount(producer.quantised));
  std::vector<size_t> positions; // of each result of the call in `made`
  size_t quantised = 0;
  for (std::string_view names = producer.results; !names.empty();) {
    std::string_view name = takeUntil(names, ' ');
    int own = positionOf(info.results, name.substr(0, name.find('?')));
    positions.push_back(own < 0 ? quantised++ : static_cast<size_t>(own) + count);
    call.results.push_back(own < 0 ? nullptr
                                   : &typeOf(at, at.op.results[static_cast<size_t>(own)]));
  }
  std::vector<State> states = computed(at, call);
  Values made(count + at.op.results.size());
  for (size_t i = 0; i < positions.size(); ++i)
    made[positions[i]] = Value(std::move(states[i]));
  return made;
}

/// Computes a norm again. It must have the attributes of the norm that computed its statistics, but
/// for `eps`, which these contain.
State Walk::madeAgain(const At &at, Call call) {
  Term of = terms_[terms_.bare(call.operands.back().state->term)];
  bool isNorm = of.kind == Term::Apply && opInfo(of.op).again &&
                opInfo(of.op).again->by == call.kind && of.result > 0 &&
                of.operands.size() + of.result == call.operands.size();
  if (!isNorm)
    return refuse(at, "does not take the statistics of a norm");
  std::vector<Attr> attrs = of.attrs;
  std::erase_if(attrs, [](const Attr &attr) { return attr.key == AttrKey::eps; });
  if (!std::ranges::equal(call.attrs, attrs, areSame))
    return refuse(at, "has other attributes than the norm that it makes again");
  const std::vector<Operand> kept(call.operands.end() - of.result, call.operands.end());
  call.kind = of.op, call.attrs = of.attrs;
  call.operands.resize(of.operands.size());
  call.results.assign(kept.size() + 1, nullptr);
  std::vector<State> made = computed(at, call);
  for (size_t i = 0; i < kept.size(); ++i)
    if (terms_.bare(made[i + 1].term) != terms_.bare(kept[i].state->term))
      return refuse(at, "takes the statistics of another norm");
  return made[0];
}

/// Quantises the results of the producer or, without one, the operand.
Values Walk::followQuantize(const At &at) {
  const OpInfo &info = opInfo(at.op);
  OpKind kind = info.form ? info.form->quantizer : at.op.kind;
  bool isDelayed = kind == OpKind::QuantizeDelayed, isBlocks = kind == OpKind::QuantizeBlocks;
  size_t scaled = isBlocks || kind == OpKind::Amax ? 0 : isDelayed ? 2 : 1;
  size_t operands = at.op.operands.size() - scaled;
  const auto count =
      static_cast<size_t>(info.form ? std::popcount(opInfo(info.form->producer).quantised) : 1);
  Values values = info.form ? followProducer(at, operands) : Values{operand(at, 0)};
  values.resize(std::max(values.size(), count));
  for (size_t i = 0; i < count; ++i)
    if (!values[i].isOne() || values[i].state.isSum())
      return refuse(at, "takes an operand that is not a single value");
  Values made(values.begin() + static_cast<std::ptrdiff_t>(count), values.end());
  made.resize(at.op.results.size());
  if (kind == OpKind::Amax)
    return largestOf(at, std::move(made), values, count);
  Value seen = isDelayed ? operand(at, operands + 1) : Value();
  for (size_t i = 0; i < count; ++i) {
    const State &x = values[i].state;
    int64_t slot = at.op.getInt(i == 0 ? AttrKey::slot : AttrKey::y_slot);
    State amax;
    if (!isBlocks)
      amax = amaxOf(at, x, operands, slot);
    if (isDelayed)
      see(at, x, seen, {slot});
    auto make = [&](std::string_view form, std::string_view scale, bool isTransposed) {
      int form_ = positionOf(info.results, form), scale_ = positionOf(info.results, scale);
      if (form_ < 0 || scale_ < 0 || static_cast<size_t>(form_) >= made.size())
        return;
      auto to = static_cast<size_t>(form_), by = static_cast<size_t>(scale_);
      auto [copy, itsScale] =
          quantised(at, x, isBlocks ? nullptr : &amax, isTransposed, typeOf(at, at.op.results[to]),
                    typeOf(at, at.op.results[by]));
      made[to] = Value(std::move(copy)), made[by] = Value(std::move(itsScale));
    };
    if (i == 1) {
      make("yt", "yscale", true);
    } else {
      make("q", "scale", at.op.getBool(AttrKey::transposed));
      make("t", positionOf(info.results, "tscale") >= 0 ? "tscale" : "scale", true);
    }
  }
  if (isDelayed)
    made[static_cast<size_t>(positionOf(info.results, "seen"))] = seen;
  return made;
}

/// The amaxes of the values that an op computes.
Values Walk::largestOf(const At &at, Values made, const Values &values, size_t count) {
  Maxima maxima;
  const Type type = Type::of(DType::F32, {1});
  for (size_t i = 0; i < count; ++i)
    maxima.entries[static_cast<int64_t>(i)].of =
        computed(at, {OpKind::Amax, {}, {}, {{&values[i].state, nullptr}}, {&type}, DType::F32})[0];
  made[static_cast<size_t>(positionOf(opInfo(at.op).results, "m"))] =
      count == 1 ? Value(maxima.entries[0].of) : Value(std::move(maxima));
  return made;
}

/// Follows a grouped product that quantises its operands itself. With operand `amax`, their scales
/// come from slots of amaxes.
Values Walk::followGrouped(const At &at) {
  int amax = positionOf(opInfo(at.op).operands, "amax");
  bool isDelayed = amax >= 0 && static_cast<size_t>(amax) < at.op.operands.size();
  size_t count = isDelayed ? static_cast<size_t>(amax) : at.op.operands.size();
  if (!takesOnes(at, count))
    return {};
  Call call = callOf(at, at.op.kind, count);
  call.results.resize(1);
  State expected;
  bool isSeen = isDelayed && at.op.operands.size() > count + 1;
  Value seen = isSeen ? operand(at, count + 1) : Value();
  if (isDelayed) {
    std::erase_if(call.attrs, isOfSlot);
    expected = kept(CellKind::Amax, typeOf(at, at.op.operands[count]));
    call.operands.push_back({&expected, &expected->whole});
    const Type &matrices =
        typeOf(at, at.op.kind == OpKind::GroupedMatMulBwd ? at.op.results[0] : at.op.operands[1]);
    int64_t experts = matrices.shape[0] * mesh_.members(call.group);
    for (size_t i = 0; i < (at.op.kind == OpKind::GroupedMatMulScaled ? 1u : 2u); ++i) {
      Slots slots = {at.op.getInt(i == 0 ? AttrKey::slot : AttrKey::b_slot), experts};
      useSlots(at, operand(at, i).state, operand(at, count), slots);
      if (isSeen)
        see(at, operand(at, i).state, seen, slots);
    }
  }
  Values values = valuesOf(computed(at, call));
  if (at.op.getInt(AttrKey::fp8_recipe) != 0 && !isSpecification_ && !isDelayed)
    declare("grouped products in 8 bits: each rank scales the rows that it multiplies");
  if (at.op.results.size() > 1)
    values.push_back(std::move(seen));
  return values;
}

// ---- amaxes of a step, and of weights ----

/// Follows the maximum of amaxes over the ranks of a group, which have parts of the values.
Values Walk::movedMaxima(const At &at, Maxima maxima) {
  if (at.op.kind != OpKind::AllReduceMax)
    return refuse(at, "moves amaxes in an unknown way");
  bool isShared = maxima.kind == Maxima::Seen && !rolesApart(at).empty();
  for (auto &[slot, entry] : maxima.entries) {
    const Maxima::Entry *of = isShared ? entryOf(sharedSlots_[at.role.step], slot, entry) : &entry;
    if (!of || of->of.term != entry.of.term)
      refuse(at, "records in amax slot {} a different value than other stages", slot);
    for (uint16_t axis : mesh_.axesOf(at.op.group)) {
      bool isOfSamples =
          entry.of.is(axis, Place::Instance) && terms_[entry.of.term].op == OpKind::Amax;
      if (isOfSamples || entry.of.is(axis, Place::Part) || entry.of.is(axis, Place::Summed))
        refuse(at, "takes the maximum over ranks in amax slot {} of values that are not parts",
               slot);
      entry.of.remove(axis);
    }
  }
  return {std::move(maxima)};
}

Values Walk::viewedMaxima(const At &at, Maxima maxima) {
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  const Type &type = typeOf(at, at.op.results[0]);
  if (maxima.kind == Maxima::History && offset == 0 && coef == 0) {
    maxima.kind = Maxima::Expected;
    return {std::move(maxima)};
  }
  auto found = maxima.entries.find(offset / kScaleStride);
  if (maxima.kind != Maxima::Scales || found == maxima.entries.end() || offset % kScaleStride != 0)
    return refuse(at, "does not view the scale of a weight");
  State scale;
  scale.term = weightIn8Bits(found->second.of.term, 1);
  scale.edit().whole = type;
  if (coef == 0)
    return {std::move(scale)};
  std::vector<uint16_t> axes = mesh_.axesOf(at.op.group);
  scale.edit().whole.shape[0] *= mesh_.members(axes);
  if (coef != type.numel() || !mover_.take(scale, axes))
    return refuse(at, "views scales that are not the rank's");
  return {std::move(scale)};
}

/// Transposes an 8-bit copy, which keeps its scale.
Values Walk::followTransposed8Bits(const At &at) {
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t cols = from.shape[from.rank - 1u];
  if (at.op.getInt(AttrKey::outer) * cols != from.numel() || at.op.getInt(AttrKey::inner) != cols ||
      from.dtype != to.dtype)
    return refuse(at, "does not transpose the matrix");
  State x = operand(at, 0).state, amax;
  const Term of = terms_[x.term];
  x.term = of.operands[0], amax.term = of.operands[1];
  const Type &scale = amax.edit().whole = Type::of(DType::F32, {1});
  return {quantised(at, x, &amax, true, to, scale).first};
}

/// The amaxes of this kind that a value has; nothing if it has others. A buffer of zeros has none
/// yet.
std::optional<Maxima> Walk::maximaOf(const Value &value, Maxima::Kind kind) const {
  if (value.isOne() && terms_.isZero(value.state.term))
    return Maxima{kind, 0, {}};
  bool isOfKind = value.kind == Value::Largest && value.maxima->kind == kind;
  return isOfKind ? std::optional(*value.maxima) : std::nullopt;
}

/// The amaxes of a block's 8-bit weights, or their 8-bit copies.
Values Walk::followWeights(const At &at) {
  std::optional<Maxima> maxima = maximaOf(operand(at, 1), Maxima::Weights);
  if (!operand(at, 0).isBlock() || !maxima)
    return refuse(at, "does not take weights and their amaxes");
  bool isAmax = at.op.kind == OpKind::AmaxShard;
  BlockState block = *operand(at, 0).block;
  for (size_t i = 0; i < block.params.size(); ++i) {
    size_t param = paramsOf(block.block)[i];
    int64_t number = numberOfScale(plan_, param);
    State &weight = block.params[i];
    bool isKept = isKeptIn8Bits(plan_.params[param]);
    if (isAmax && isKept) {
      for (uint16_t axis : block.axes)
        weight.put({axis, Place::Largest});
      maxima->entries[number] = {weight, 1, {}};
    } else if (!isAmax) {
      auto found = maxima->entries.find(number);
      if (!isKept || found == maxima->entries.end() || !found->second.of->places.empty() ||
          found->second.of.term != weight.term)
        refuse(at, "does not have the amax of '{}'", plan_.params[param].name);
      weight.term = weightIn8Bits(weight.term, 0);
    }
  }
  return {isAmax ? Value(std::move(*maxima)) : Value(std::move(block))};
}

Values Walk::followWeightScales(const At &at) {
  std::optional<Maxima> scales = maximaOf(operand(at, 0), Maxima::Weights);
  if (!scales)
    return refuse(at, "does not take amaxes of weights");
  scales->kind = Maxima::Scales;
  for (const auto &[number, entry] : scales->entries)
    if (!entry.of->places.empty())
      refuse(at, "has amax {} of only a part of the weight", number);
  return {std::move(*scales)};
}

/// Checks at a step's end that the slots have recorded all microbatches and ranks, and the values
/// that were scaled with them.
Values Walk::endMaxima(const At &at) {
  const Value &history = operand(at, 0), &state = operand(at, 2);
  const std::optional<Maxima> seen = maximaOf(operand(at, 1), Maxima::Seen);
  bool isFine = history.kind == Value::Largest && history.maxima->kind == Maxima::History &&
                history.maxima->step == at.role.step && seen && state.kind == Value::Step &&
                state.step->training.finished == at.role.step;
  if (!isFine)
    return refuse(at, "does not take the amaxes of the step");
  int64_t base = at.role.step * kStep, last = base + goals_.microbatches - 1;
  for (const auto &[slot, entry] : seen->entries)
    if (!entry.of->places.empty() ||
        (!entry.seen.empty() && entry.seen != std::vector{Contribution{entry.of.term, base, last}}))
      refuse(at, "has not recorded all microbatches and ranks in amax slot {}", slot);
  for (auto used = uses_.lower_bound({at.role.index, INT64_MIN});
       used != uses_.end() && used->first.first == at.role.index; used = uses_.erase(used)) {
    auto found = seen->entries.find(used->first.second);
    if (found == seen->entries.end() ||
        std::pair(found->second.of.term, found->second.count) != used->second)
      refuse(at, "has not recorded in amax slot {} the value that this slot scales",
             used->first.second);
    scaled_.insert_or_assign(used->first, used->second);
  }
  int64_t next = at.role.step + 1;
  return {Maxima{Maxima::History, next, {}}, Maxima(), Maxima{Maxima::Expected, next, {}}};
}

/// The content of a cell for amaxes after `steps` steps.
Value Walk::initialMaxima(const Cell &cell, int64_t steps) {
  Maxima maxima;
  maxima.step = steps;
  if (cell.kind == CellKind::AmaxHistory)
    maxima.kind = Maxima::History;
  else if (!isSpecification_ && cell.kind != CellKind::WeightScales)
    return Value();
  if (cell.kind == CellKind::Amax)
    maxima.kind = Maxima::Expected;
  if (cell.kind == CellKind::WeightScales) { // of a plan: those that a load fills
    maxima.kind = Maxima::Scales;
    for (size_t p = 0; p < plan_.params.size(); ++p)
      if (isKeptIn8Bits(plan_.params[p]) &&
          (isSpecification_ || !isTrained(plan_, plan_.params[p])))
        maxima.entries[numberOfScale(plan_, p)].of.term =
            parameter(Term::Parameter, p, maxima.step);
  }
  return maxima;
}

/// Whether the value has the scales of all frozen weights that the role has in 8 bits.
bool Walk::hasScales(const Role &role, const Value &value, const Maxima &needed) const {
  const Maxima has = maximaOf(value, Maxima::Scales).value_or(Maxima());
  for (size_t p = 0; p < plan_.params.size(); ++p) {
    auto entry = needed.entries.find(numberOfScale(plan_, p));
    if (!isKeptIn8Bits(plan_.params[p]) || entry == needed.entries.end() ||
        findCell(role, CellKind::Weight, plan_.params[p].block) == kNone)
      continue;
    auto found = has.entries.find(entry->first);
    if (found == has.entries.end() ||
        terms_.bare(found->second.of.term) != terms_.bare(entry->second.of.term))
      return false;
  }
  return true;
}

} // namespace shardc::plan::spec
