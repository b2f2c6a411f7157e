// Handles 8-bit values and their scales. A quantised value has a term of its own, with its format
// and the way in which it is scaled. In the delayed recipe, a value is scaled by a slot of amaxes.
// In all microbatches and ranks, it must be the value whose amax the slot records.
#include <algorithm>
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

/// Whether the amax of a value in this placement is the maximum of the ranks' own amaxes.
bool isInParts(Place::Kind kind) { return kind != Place::Part && kind != Place::Summed; }

int64_t formatOf(DType type, std::optional<ScaleBlocks> blocks) {
  return static_cast<int64_t>(type) +
         (blocks ? (static_cast<int64_t>(*blocks) + 1) * 256 : int64_t{0});
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

State Walk::keptAmaxes(const Type &type) {
  State kept;
  kept.term = terms_.of(Term::Kept, static_cast<int64_t>(CellKind::Amax));
  kept.edit().whole = type;
  return kept;
}

/// Whether the value is a buffer of amaxes that was filled with zeros and has recorded nothing yet.
bool Walk::isZero(const Value &value) const {
  if (!value.isOne())
    return false;
  const Term &term = terms_[terms_.bare(value.state.term)];
  return term.op == OpKind::Fill && term.attrs.empty();
}

/// The amax by which the value is scaled: the current one, or that of a slot from earlier steps.
std::optional<State> Walk::amaxOf(const At &at, const State &x, size_t from, int64_t slot) {
  const Value &amax = operand(at, from);
  auto ofSlices = [&](State largest) {
    for (uint16_t axis : compute_.mesh().axesOf(GroupKind::Context)) {
      const Place *place = largest.at(axis), *of = x.at(axis);
      if (place && place->kind == Place::Largest && of && of->kind == Place::Shard) {
        largest.remove(axis);
        declare("quantize: each rank has separate scales for its slices of sequences");
      }
    }
    return largest;
  };
  if (amax.isOne())
    return ofSlices(amax.state);
  if (amax.kind != Value::Largest)
    return refuse(at, "does not take amaxes");
  if (amax.maxima->kind == Maxima::Seen) { // recorded by an earlier op of the step
    auto found = amax.maxima->entries.find(slot);
    if (found == amax.maxima->entries.end())
      return refuse(at, "takes an amax that no op has recorded");
    return ofSlices(found->second.of);
  }
  if (!useSlots(at, x, amax, {slot}))
    return std::nullopt;
  return keptAmaxes(typeOf(at, at.op.operands[from]));
}

bool Walk::useSlots(const At &at, const State &x, const Value &amax, Slots slots) {
  bool isEval = at.role.segment().kind == SegmentKind::Eval;
  int64_t next = isSpecification_ ? static_cast<int64_t>(goals_.steps.size()) : at.role.step;
  if (!isSpecification_ && isEval)
    ++next; // an evaluation comes after the update
  if (amax.kind != Value::Largest || amax.maxima->kind != Maxima::Expected ||
      amax.maxima->step != next)
    return refuse(at, "takes amaxes of a different step");
  SlotOf slot(at.role.index, slots.first);
  Scaled of(x.term, slots.count);
  if (isEval && !isSpecification_) {
    auto trained = scaled_.find(slot);
    bool isSame = trained != scaled_.end() && trained->second.second == of.second &&
                  goals_.steps[static_cast<size_t>(next)].evaluatedScales.contains(
                      {nextTerm(trained->second.first), of.first});
    return isSame ||
           refuse(at, fmt::format("uses amax slot {} for a different value than in training",
                                  slots.first));
  }
  auto [used, isNew] = (isEval ? scaled_ : uses_).try_emplace(slot, of);
  return isNew || used->second == of ||
         refuse(at, fmt::format("uses amax slot {} for two values", slots.first));
}

/// For each slot that is used in training and in evaluations: the values that it scales there.
std::set<std::pair<TermId, TermId>> Walk::scalesOfEvaluation() const {
  std::set<std::pair<TermId, TermId>> scales;
  for (const auto &[slot, of] : scaled_)
    if (auto trained = uses_.find(slot); trained != uses_.end())
      scales.emplace(trained->second.first, of.first);
  return scales;
}

/// Records in slots the amax of a value of one microbatch.
bool Walk::see(const At &at, const State &x, Value &seen, Slots slots) {
  bool isFill = isZero(seen);
  if (!isFill && (seen.kind != Value::Largest || seen.maxima->kind != Maxima::Seen))
    return refuse(at, "records amaxes in a value that has none");
  Maxima maxima = isFill ? Maxima() : *seen.maxima;
  Maxima::Entry entry = {x, x.microbatch, x.microbatch, slots.count};
  entry.of.microbatch = -1;
  auto [found, isNew] = maxima.entries.try_emplace(slots.first, entry);
  auto next = std::next(found);
  bool isApart = (next == maxima.entries.end() || next->first >= slots.first + slots.count) &&
                 (found == maxima.entries.begin() ||
                  std::prev(found)->first + std::prev(found)->second.count <= slots.first);
  if (!isApart)
    return refuse(at,
                  fmt::format("records in amax slot {}, which overlaps the slots of another value",
                              slots.first));
  if (!isNew) {
    Maxima::Entry &before = found->second;
    bool isNext = before.first <= entry.first && entry.last <= before.last + 1;
    if (!(before.of == entry.of) || before.count != entry.count || !isNext)
      return refuse(at, fmt::format("records two values, or not every microbatch, in amax slot {}",
                                    slots.first));
    before.last = std::max(before.last, entry.last);
  }
  seen = Value::of(std::move(maxima));
  return true;
}

/// Declares a difference if a shard ends within a block of scales, since ranks then have other
/// blocks than the whole value. Returns false if the value's extents are not known.
bool Walk::cutsNoBlock(const At &at, const State &x, ScaleBlocks blocks, bool isTransposed) {
  Extents block = blockOf(blocks);
  if (isTransposed)
    std::swap(block.rows, block.cols);
  int64_t cols = x->whole.rank == 0 ? 0 : x->whole.shape[x->whole.rank - 1u];
  if (cols == 0)
    return refuse(at, "takes a value with unknown extents");
  int64_t rows = x->whole.numel() / cols;
  for (const Place &place : x->places) {
    if (place.kind != Place::Shard)
      continue;
    int64_t before = place.outer < rows ? place.outer : place.outer / rows;
    int64_t of = place.outer < rows ? rows : cols;
    int64_t extent = of / before / compute_.mesh().size(place.axis) / (place.isMirrored ? 2 : 1);
    int64_t size = place.outer < rows ? block.rows : block.cols;
    if (size > 1 && extent % size != 0)
      declare(fmt::format("quantize_blocks: ranks along {} have {} elements, which is not a "
                          "multiple of the block size {}",
                          compute_.mesh().name(place.axis), extent, size));
  }
  return true;
}

/// The 8-bit copy of a value, and its scale.
std::optional<std::pair<State, State>> Walk::quantised(const At &at, const Quantised &how) {
  bool isBlocks = !how.amax;
  const Type &type = *how.type, &scaleType = *how.scaleType;
  Call call = {isBlocks ? OpKind::QuantizeBlocks : OpKind::Quantize, {}, {}, {}, {}, DType::F32};
  call.operands = {{&how.x, nullptr}};
  call.results = {&type};
  std::optional<ScaleBlocks> blocks;
  if (isBlocks) {
    int64_t cols = type.shape[type.rank - 1u];
    blocks = blocksOf(scaleType.dtype == DType::U8, {scaleType.shape[0], scaleType.shape[1]},
                      {type.numel() / cols, cols});
    if (!blocks || !cutsNoBlock(at, how.x, *blocks, how.isTransposed))
      return refuse(at, "has scales that fit no block size");
  } else {
    call.operands.push_back({&*how.amax, nullptr});
  }
  call.number = formatOf(type.dtype, blocks);
  if (how.isTransposed)
    call.attrs.push_back({AttrKey::transposed, {.i = 1}});
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  State scale = made->front();
  Term term = terms_[scale.term];
  term.result = 1;
  if (!isBlocks)
    term.attrs.clear(); // a scale is the same for both copies
  scale.term = terms_.of(std::move(term));
  std::erase_if(scale.edit().places, [](const Place &place) { return place.kind == Place::Shard; });
  scale.edit().whole = scaleType;
  return std::pair(made->front(), scale);
}

/// A call of the op with its first operands, and without attributes.
std::optional<Call> Walk::callOf(const At &at, size_t operands) {
  Call call = {at.op.kind, {}, compute_.mesh().axesOf(at.op.group), {}, {}, DType::F32};
  for (size_t i = 0; i < operands; ++i) {
    if (!operand(at, i).isOne())
      return refuse(at, "takes an operand that is not a single value");
    call.operands.push_back({&operand(at, i).state, &typeOf(at, at.op.operands[i])});
  }
  return call;
}

/// Computes the results that an op's epilogue reads, followed by the op's other results.
std::optional<Walk::Values> Walk::followProducer(const At &at, size_t operands) {
  const OpInfo &info = opInfo(at.op), &producer = opInfo(at.op.kind);
  std::optional<Call> given = callOf(at, operands);
  if (!given)
    return std::nullopt;
  Call &call = *given;
  for (const Attr &attr : at.op.attrs)
    if (!isOfSlot(attr) && attr.key != AttrKey::transposed)
      call.attrs.push_back(attr);
  Values made(countNames(producer.makes));
  if (producer.needsEpilogue) {
    std::optional<State> again = madeAgain(at, call);
    if (!again)
      return std::nullopt;
    return Values{Value::of(std::move(*again))};
  }
  call.between = call.operands[0].type->dtype;
  std::string_view names = producer.results;
  std::vector<int> positions; // index among those for the epilogue, or -1 - (index of a result)
  while (!names.empty()) {
    std::string_view name = takeUntil(names, ' ');
    if (name.ends_with('?'))
      name.remove_suffix(1);
    int makes = positionOf(producer.makes, name), own = positionOf(info.results, name);
    if (makes < 0 && own < 0)
      break;
    positions.push_back(makes >= 0 ? makes : -1 - own);
    call.results.push_back(makes >= 0 ? nullptr
                                      : &typeOf(at, at.op.results[static_cast<size_t>(own)]));
  }
  std::optional<std::vector<State>> states = compute_.apply(call);
  if (!states)
    return refuseComputed(at);
  made.resize(made.size() + at.op.results.size());
  size_t first = countNames(producer.makes);
  for (size_t i = 0; i < positions.size(); ++i)
    made[positions[i] >= 0 ? static_cast<size_t>(positions[i])
                           : first + static_cast<size_t>(-1 - positions[i])] =
        Value::of((*states)[i]);
  return made;
}

/// Computes a norm again. It must have the attributes of the norm that computed its statistics.
std::optional<State> Walk::madeAgain(const At &at, Call call) {
  State statistics = *call.operands.back().state;
  Term of = terms_[terms_.bare(statistics.term)];
  bool isNorm = of.kind == Term::Apply && opInfo(of.op).again &&
                opInfo(of.op).again->by == at.op.kind && of.result > 0 &&
                of.operands.size() + of.result == call.operands.size();
  if (!isNorm)
    return refuse(at, "does not take the statistics of a norm");
  call.between = call.operands[0].type->dtype;
  call.kind = of.op, call.attrs = of.attrs;
  call.operands.resize(of.operands.size());
  std::vector<const State *> kept;
  for (size_t i = of.operands.size(); i < at.op.operands.size() && kept.size() < of.result; ++i)
    kept.push_back(&operand(at, i).state);
  call.results.assign(kept.size() + 1, nullptr);
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  for (size_t i = 0; i < kept.size(); ++i)
    if (terms_.bare((*made)[i + 1].term) != terms_.bare(kept[i]->term))
      return refuse(at, "takes the statistics of another norm");
  return (*made)[0];
}

/// Quantises the results of the producer or, without an epilogue, the operand.
std::optional<Walk::Values> Walk::followQuantize(const At &at) {
  const OpInfo &info = opInfo(at.op);
  bool isFused = at.op.epilogue != Epilogue::None;
  OpKind kind = isFused ? opOfEpilogue(at.op.epilogue) : at.op.kind;
  bool isDelayed = kind == OpKind::QuantizeDelayed, isBlocks = kind == OpKind::QuantizeBlocks;
  size_t scaled = isBlocks || kind == OpKind::Amax ? 0 : isDelayed ? 2 : 1;
  size_t operands = at.op.operands.size() - scaled;
  size_t count = isFused ? countNames(opInfo(at.op.kind).makes) : 1;
  std::optional<Values> values =
      isFused ? followProducer(at, operands) : std::optional(Values{operand(at, 0)});
  if (!values)
    return std::nullopt;
  for (size_t i = 0; i < count; ++i)
    if (!(*values)[i].isOne() || (*values)[i].state.isSum())
      return refuse(at, "takes an operand that is not a single value");
  Values made(at.op.results.size());
  for (size_t r = 0; r < made.size() && values->size() > count + r; ++r)
    made[r] = (*values)[count + r];
  if (kind == OpKind::Amax)
    return largestOf(at, std::move(made), *values, count);
  Value seen = isDelayed ? operand(at, operands + 1) : Value();
  for (size_t i = 0; i < count; ++i) {
    const State &x = (*values)[i].state;
    int64_t slot = at.op.getInt(i == 0 ? AttrKey::slot : AttrKey::y_slot);
    std::optional<State> amax;
    if (!isBlocks && !(amax = amaxOf(at, x, operands, slot)))
      return std::nullopt;
    if (isDelayed && !see(at, x, seen, {slot}))
      return std::nullopt;
    auto make = [&](std::string_view form, std::string_view scale, bool isTransposed) {
      int to = positionOf(info.results, form), by = positionOf(info.results, scale);
      if (to < 0 || by < 0 || static_cast<size_t>(to) >= made.size())
        return true;
      auto type = [&](int r) { return &typeOf(at, at.op.results[static_cast<size_t>(r)]); };
      auto copy = quantised(at, {x, amax, isTransposed, type(to), type(by)});
      if (!copy)
        return false;
      made[static_cast<size_t>(to)] = Value::of(std::move(copy->first));
      made[static_cast<size_t>(by)] = Value::of(std::move(copy->second));
      return true;
    };
    bool isMade =
        i == 1 ? make("yt", "yscale", true)
               : make("q", "scale", at.op.getBool(AttrKey::transposed)) &&
                     make("t", positionOf(info.results, "tscale") >= 0 ? "tscale" : "scale", true);
    if (!isMade)
      return std::nullopt;
  }
  if (isDelayed)
    made[static_cast<size_t>(positionOf(info.results, "seen"))] = seen;
  return made;
}

/// The amaxes of the values that an op computes.
std::optional<Walk::Values> Walk::largestOf(const At &at, Values made, const Values &values,
                                            size_t count) {
  Maxima maxima;
  for (size_t i = 0; i < count; ++i) {
    Type type = Type::of(DType::F32, {1});
    Call call = {OpKind::Amax, {}, {}, {{&values[i].state, nullptr}}, {&type}, DType::F32};
    std::optional<std::vector<State>> largest = compute_.applyPlain(call);
    if (!largest)
      return refuseComputed(at);
    maxima.entries[static_cast<int64_t>(i)].of = std::move(largest->front());
  }
  made[static_cast<size_t>(positionOf(opInfo(at.op).results, "m"))] =
      count == 1 ? Value::of(maxima.entries[0].of) : Value::of(std::move(maxima));
  return made;
}

/// Follows a grouped product that quantises its operands itself. With operand `amax`, their scales
/// come from slots of amaxes.
std::optional<Walk::Values> Walk::followGrouped(const At &at) {
  int amax = positionOf(opInfo(at.op).operands, "amax");
  bool isDelayed = amax >= 0 && static_cast<size_t>(amax) < at.op.operands.size();
  size_t count = isDelayed ? static_cast<size_t>(amax) : at.op.operands.size();
  std::optional<Call> given = callOf(at, count);
  if (!given)
    return std::nullopt;
  Call &call = *given;
  for (const Attr &attr : at.op.attrs)
    if (!isDelayed || !isOfSlot(attr))
      call.attrs.push_back(attr);
  call.results = {&typeOf(at, at.op.results[0])};
  State kept;
  Value seen;
  if (isDelayed) {
    const Value &expected = operand(at, count);
    kept = keptAmaxes(typeOf(at, at.op.operands[count]));
    call.operands.push_back({&kept, &kept->whole});
    bool isSeen = at.op.operands.size() > count + 1;
    seen = isSeen ? operand(at, count + 1) : Value();
    const Type &matrices =
        typeOf(at, at.op.kind == OpKind::GroupedMatMulBwd ? at.op.results[0] : at.op.operands[1]);
    int64_t experts = matrices.shape[0];
    for (uint16_t axis : call.group)
      experts *= compute_.mesh().size(axis);
    for (size_t i = 0; i < (at.op.kind == OpKind::GroupedMatMulScaled ? 1u : 2u); ++i) {
      Slots slots = {at.op.getInt(i == 0 ? AttrKey::slot : AttrKey::b_slot), experts};
      if (!useSlots(at, operand(at, i).state, expected, slots) ||
          (isSeen && !see(at, operand(at, i).state, seen, slots)))
        return std::nullopt;
    }
  }
  std::optional<std::vector<State>> made = compute_.apply(call);
  if (!made)
    return refuseComputed(at);
  if (at.op.getInt(AttrKey::fp8_recipe) != 0 && !isSpecification_ && !isDelayed)
    declare("grouped products in 8 bits: each rank scales the rows that it multiplies");
  Values values = {Value::of(std::move(made->front()))};
  if (at.op.results.size() > 1)
    values.push_back(std::move(seen));
  return values;
}

// ---- amaxes of a step, and of weights ----

/// Whether slots that several roles reduce together belong to the same value in all of them. These
/// slots are in `uses_` too, under a number that is larger than that of any role and names the
/// step.
bool Walk::shareSlots(const At &at, const Maxima &maxima) {
  auto step = kNone - static_cast<uint32_t>(at.role.step);
  for (const auto &[slot, entry] : maxima.entries) {
    std::pair of(entry.of.term, entry.count);
    auto [found, isNew] = uses_.try_emplace({step, slot}, of);
    auto isBefore = [step](auto a, auto b) {
      return a->first.first != step || b->first.first != step ||
             a->first.second + a->second.second <= b->first.second;
    };
    bool isApart = (found == uses_.begin() || isBefore(std::prev(found), found)) &&
                   (std::next(found) == uses_.end() || isBefore(found, std::next(found)));
    if (found->second != of || !isApart)
      return refuse(
          at, fmt::format("records in amax slot {} a different value than other stages", slot));
  }
  return true;
}

/// Follows the maximum of amaxes over the ranks of a group, which have parts of the values.
std::optional<Walk::Values> Walk::movedMaxima(const At &at, Maxima maxima) {
  if (at.op.kind != OpKind::AllReduceMax)
    return refuse(at, "moves amaxes in an unknown way");
  if (maxima.kind == Maxima::Seen && !rolesApart(at).empty() && !shareSlots(at, maxima))
    return std::nullopt;
  for (auto &[slot, entry] : maxima.entries)
    for (uint16_t axis : compute_.mesh().axesOf(at.op.group)) {
      const Place *place = entry.of.at(axis);
      bool isOfSamples =
          place && place->kind == Place::Instance && terms_[entry.of.term].op == OpKind::Amax;
      if (place && (!isInParts(place->kind) || isOfSamples))
        return refuse(
            at,
            fmt::format("takes the maximum over ranks in amax slot {} of values that are not parts",
                        slot));
      entry.of.remove(axis);
      entry.of.edit().pooled &= ~bitOf(axis);
    }
  return Values{Value::of(std::move(maxima))};
}

std::optional<Walk::Values> Walk::viewedMaxima(const At &at, const Maxima &maxima) {
  int64_t offset = at.op.getInt(AttrKey::offset), coef = at.op.getInt(AttrKey::coef);
  if (maxima.kind == Maxima::History && offset == 0 && coef == 0) {
    Maxima expected = maxima;
    expected.kind = Maxima::Expected;
    return Values{Value::of(std::move(expected))};
  }
  auto found = maxima.entries.find(offset / kScaleStride);
  if (maxima.kind != Maxima::Scales || found == maxima.entries.end() || offset % kScaleStride != 0)
    return refuse(at, "does not view the scale of a weight");
  State scale;
  scale.term = weightIn8Bits(found->second.of.term, 1);
  scale.edit().whole = typeOf(at, at.op.results[0]);
  if (coef != 0)
    for (uint16_t axis : compute_.mesh().axesOf(at.op.group)) {
      scale.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(scale, 1)});
      scale.edit().whole.shape[0] *= compute_.mesh().size(axis);
    }
  if (coef != 0 && coef != typeOf(at, at.op.results[0]).numel())
    return refuse(at, "views scales that are not the rank's");
  return Values{Value::of(std::move(scale))};
}

/// Transposes an 8-bit copy, which keeps its scale.
std::optional<Walk::Values> Walk::followTransposed8Bits(const At &at) {
  const Type &from = typeOf(at, at.op.operands[0]), &to = typeOf(at, at.op.results[0]);
  int64_t cols = from.shape[from.rank - 1u];
  if (at.op.getInt(AttrKey::outer) * cols != from.numel() || at.op.getInt(AttrKey::inner) != cols ||
      from.dtype != to.dtype)
    return refuse(at, "does not transpose the matrix");
  State x = operand(at, 0).state, amax;
  Term of = terms_[x.term];
  x.term = of.operands[0], amax.term = of.operands[1];
  amax.edit().whole = Type::of(DType::F32, {1});
  auto copy = quantised(at, {x, amax, true, &to, &amax->whole});
  if (!copy)
    return std::nullopt;
  return Values{Value::of(std::move(copy->first))};
}

std::optional<Walk::Values> Walk::followAmaxShard(const At &at) {
  const Value &x = operand(at, 0), &amax = operand(at, 1);
  bool isFill = isZero(amax);
  if (!x.isBlock() ||
      (!isFill && (amax.kind != Value::Largest || amax.maxima->kind != Maxima::Weights)))
    return refuse(at, "does not take weights and their amaxes");
  Maxima maxima = isFill ? Maxima() : *amax.maxima;
  maxima.kind = Maxima::Weights;
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(x.block->block)];
  for (size_t i = 0; i < params.size(); ++i) {
    if (!isKeptIn8Bits(plan_.params[params[i]]))
      continue;
    State of = x.block->params[i];
    for (uint16_t axis : x.block->axes)
      of.put({axis, Place::Largest});
    maxima.entries[numberOfScale(plan_, params[i])] = {std::move(of), 0, 0};
  }
  return Values{Value::of(std::move(maxima))};
}

std::optional<Walk::Values> Walk::followQuantizeShard(const At &at) {
  const Value &x = operand(at, 0), &amax = operand(at, 1);
  if (!x.isBlock() || amax.kind != Value::Largest || amax.maxima->kind != Maxima::Weights)
    return refuse(at, "does not take weights and their amaxes");
  BlockState block = *x.block;
  const std::vector<size_t> &params = paramsOf_[static_cast<size_t>(block.block)];
  for (size_t i = 0; i < params.size(); ++i) {
    auto found = amax.maxima->entries.find(numberOfScale(plan_, params[i]));
    if (found == amax.maxima->entries.end() || !found->second.of->places.empty() ||
        found->second.of.term != block.params[i].term || !isKeptIn8Bits(plan_.params[params[i]]))
      return refuse(at,
                    fmt::format("does not have the amax of '{}'", plan_.params[params[i]].name));
    block.params[i].term = weightIn8Bits(block.params[i].term, 0);
  }
  return Values{Value::of(std::move(block))};
}

std::optional<Walk::Values> Walk::followWeightScales(const At &at) {
  const Value &amax = operand(at, 0);
  if (amax.kind != Value::Largest || amax.maxima->kind != Maxima::Weights)
    return refuse(at, "does not take amaxes of weights");
  Maxima scales = *amax.maxima;
  scales.kind = Maxima::Scales;
  for (const auto &[number, entry] : scales.entries)
    if (!entry.of->places.empty())
      return refuse(at, fmt::format("has amax {} of only a part of the weight", number));
  return Values{Value::of(std::move(scales))};
}

/// Checks at a step's end that the slots have recorded all microbatches and ranks, and the values
/// that were scaled with them.
std::optional<Walk::Values> Walk::endMaxima(const At &at) {
  const Value &history = operand(at, 0), &seen = operand(at, 1), &state = operand(at, 2);
  static const Maxima kNone; // for a stage without slots
  bool hasSeen = seen.kind == Value::Largest;
  const Maxima &maxima = hasSeen ? *seen.maxima : kNone;
  bool isFine = history.kind == Value::Largest && history.maxima->kind == Maxima::History &&
                history.maxima->step == at.role.step && (hasSeen || isZero(seen)) &&
                maxima.kind == Maxima::Seen && state.kind == Value::Step &&
                state.step->training.finished == at.role.step;
  if (!isFine)
    return refuse(at, "does not take the amaxes of the step");
  if (!checkHyper(at))
    return std::nullopt;
  int64_t base = at.role.step * kStep, last = base + goals_.microbatches - 1;
  for (const auto &[slot, entry] : maxima.entries)
    if (!entry.of->places.empty() || entry.of->pooled != 0 ||
        (entry.first >= 0 && (entry.first != base || entry.last != last)))
      return refuse(
          at, fmt::format("has not recorded all microbatches and ranks in amax slot {}", slot));
  for (auto used = uses_.lower_bound({at.role.index, INT64_MIN});
       used != uses_.end() && used->first.first == at.role.index; used = uses_.erase(used)) {
    auto found = maxima.entries.find(used->first.second);
    if (found == maxima.entries.end() ||
        std::pair(found->second.of.term, found->second.count) != used->second)
      return refuse(at,
                    fmt::format("has not recorded in amax slot {} the value that this slot scales",
                                used->first.second));
    scaled_.insert_or_assign(used->first, used->second);
  }
  Maxima next;
  next.step = at.role.step + 1;
  Values made;
  for (Maxima::Kind kind : {Maxima::History, Maxima::Seen, Maxima::Expected}) {
    next.kind = kind;
    made.push_back(Value::of(kind == Maxima::Seen ? Maxima() : next));
  }
  return made;
}

/// The cell's content at the start of a run, or at the start of the specification's steps.
Value Walk::initialMaxima(const Cell &cell) {
  Maxima maxima;
  maxima.step = static_cast<int64_t>(isSpecification_ ? goals_.steps.size() : 0);
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
  return Value::of(std::move(maxima));
}

/// Whether the value has the scales of all frozen weights that the role has in 8 bits.
bool Walk::hasScales(const Role &role, const Value &value, const Maxima &needed) const {
  for (size_t p = 0; p < plan_.params.size(); ++p) {
    auto entry = needed.entries.find(numberOfScale(plan_, p));
    if (!isKeptIn8Bits(plan_.params[p]) || entry == needed.entries.end() ||
        findCell(role, CellKind::Weight, plan_.params[p].block) == kNone)
      continue;
    if (value.kind != Value::Largest || value.maxima->kind != Maxima::Scales)
      return false;
    auto found = value.maxima->entries.find(entry->first);
    if (found == value.maxima->entries.end() ||
        terms_.bare(found->second.of.term) != terms_.bare(entry->second.of.term))
      return false;
  }
  return true;
}

} // namespace shardc::plan::spec
