// Handles pieces of rows that a rank computes one after the other. A piece is a shard along an axis
// of its own, of which this rank is each member in turn. Also handles norms over columns that are
// divided among ranks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

std::optional<Walk::Values> Walk::followPiece(const At &at, State state) {
  std::optional<State> piece = pieceOf(at, std::move(state), at.op.getInt(AttrKey::offset),
                                       typeOf(at, at.op.results[0]).numel());
  if (!piece)
    return std::nullopt;
  return Values{Value::of(std::move(*piece))};
}

/// The largest number of elements that divides all pieces of a value which the segment views.
int64_t Walk::sliceOfPieces(const At &at) {
  const Segment &segment = at.role.segment();
  int64_t slice = typeOf(at, at.op.operands[0]).numel();
  for (const Op &op : segment.ops) {
    if (op.kind != OpKind::View || op.operands[0] != at.op.operands[0])
      continue;
    int64_t coef = op.getInt(AttrKey::coef);
    int64_t size = coef == 0 ? typeOf(at, op.results[0]).numel()
                             : coef * compute_.mesh().members(compute_.mesh().axesOf(op.group));
    slice = std::gcd(std::gcd(slice, op.getInt(AttrKey::offset)), size);
  }
  return slice;
}

/// A view of some elements of a value that is whole here: one piece, or several side by side.
std::optional<State> Walk::pieceOf(const At &at, State state, int64_t offset, int64_t size) {
  int64_t all = typeOf(at, at.op.operands[0]).numel(), slice = sliceOfPieces(at);
  bool isPiece = state->order.kind == Order::Dims && !state.isSum() && state->cover.isAll() &&
                 size > 0 && offset >= 0 && offset + size <= all;
  if (!isPiece)
    return refuse(at, "views some elements of a value that is divided");
  if (all / slice > kPiecesMax)
    return refuse(at, fmt::format("cuts {} elements into pieces that only {} divides; at most {} "
                                  "slices are followed",
                                  all, slice, kPiecesMax));
  auto count = static_cast<size_t>(all / slice);
  auto axis = static_cast<uint16_t>(kPieceAxes + count);
  state.put({axis, Place::Shard, false, false, compute_.mesh().wholeOuter(state, 1)});
  Cover &cover = state.edit().cover;
  cover.axis = axis;
  cover.slices.assign(count, false);
  std::fill_n(cover.slices.begin() + offset / slice, size / slice, true);
  return state;
}

/// Joins the pieces of a value if the operands are all of its pieces in order. Otherwise returns
/// none, and refuses nothing.
std::optional<Walk::Values> Walk::followJoin(const At &at) {
  const Value &first = operand(at, 0);
  if (!first.isOne() || !first.state->cover.isPiece())
    return std::nullopt;
  auto axis = static_cast<uint16_t>(first.state->cover.axis);
  State whole = first.state;
  whole.remove(axis);
  whole.edit().cover = Cover();
  int64_t joined = 0; // slices
  for (size_t i = 0; i < at.op.operands.size(); ++i) {
    State piece = operand(at, i).state;
    const Place *place = piece.at(axis);
    bool isPiece = operand(at, i).isOne() && place != nullptr && place->kind == Place::Shard &&
                   piece->cover.axis == axis &&
                   compute_.mesh().localOuter(piece, place->outer, axis) == 1;
    if (isPiece) {
      const std::vector<bool> &slices = piece->cover.slices;
      auto begin = std::ranges::find(slices, true), end = std::find(begin, slices.end(), false);
      isPiece = begin - slices.begin() == joined &&
                std::find(end, slices.end(), true) == slices.end() &&
                compute_.mesh().shards(piece, axis).times(typeOf(at, at.op.operands[i]).numel()) ==
                    typeOf(at, at.op.results[0]).numel();
      joined = end - slices.begin();
    }
    piece.remove(axis);
    piece.edit().cover = Cover(), piece.edit().whole = whole->whole;
    if (!isPiece || !(piece == whole))
      return refuse(at,
                    fmt::format("operand {} is not the piece of the value for this position", i));
  }
  if (joined != compute_.mesh().size(axis))
    return refuse(at, "lacks the last pieces of the value");
  return Values{Value::of(std::move(whole))};
}

namespace {

/// The attribute `scale` of the dot_rows op that computed the term.
double scaleOf(const Term &term) {
  for (const Attr &attr : term.attrs)
    if (attr.key == AttrKey::scale)
      return attr.f;
  return 1;
}

} // namespace

/// Whether `dots` is the mean over columns of the product of `factors`, where each of `parts` ranks
/// holds an equal share of it.
bool Walk::isMeanOf(const State &dots, const std::vector<TermId> &factors, int64_t columns,
                    int64_t parts) {
  const Term &term = terms_[dots.term];
  bool isOf = term.kind == Term::Apply && term.op == OpKind::DotRows && term.operands == factors;
  double mean = scaleOf(term) * static_cast<double>(dots->multiple.over * columns * parts) /
                static_cast<double>(dots->multiple.under);
  return isOf && std::abs(mean - 1) < 1e-6;
}

/// Follows a norm over a part of the columns. It equals that part of the whole norm if it uses the
/// mean over all columns.
std::optional<Walk::Values> Walk::followNormPart(const At &at) {
  bool isBack = at.op.kind == OpKind::RmsNormPartBwd;
  Call call = {at.op.kind, at.op.attrs, {}, {}, {}, DType::F32, 0};
  std::vector<State> states;
  for (ValueId value : at.op.operands) {
    if (!at.role.values[value].isOne())
      return refuse(at, "takes an operand that is not a single value");
    states.push_back(at.role.values[value].state);
  }
  size_t x = isBack ? 1 : 0;
  const Type &whole = states[x]->whole;
  int64_t columns = whole.rank == 0 ? 0 : whole.shape[whole.rank - 1u], parts = 1;
  // Axes over which the gradient is a sum; each rank has an equal share of the mean.
  std::vector<Place> sums;
  if (isBack) {
    for (const Place &place : states[0]->places)
      if (place.kind == Place::Part)
        sums.push_back(place), parts *= compute_.mesh().size(place.axis);
    for (const Place &place : sums)
      states[0].remove(place.axis);
  }
  TermId of = states[x].term, weight = states[x + 1].term;
  bool isMean = isMeanOf(states[x + 2], {of, of}, columns, 1) &&
                (!isBack || isMeanOf(states[4], {states[0].term, of, weight}, columns, parts));
  if (!isMean)
    return refuse(at, "does not take the means of whole rows");
  for (size_t i = x + 2; i < states.size(); ++i)
    states[i].edit().multiple = Multiple();
  for (size_t i = 0; i < states.size(); ++i)
    call.operands.push_back({&states[i], &typeOf(at, at.op.operands[i])});
  for (ValueId value : at.op.results)
    call.results.push_back(&typeOf(at, value));
  std::optional<std::vector<State>> made = compute_.applyPlain(call);
  if (!made)
    return refuseComputed(at);
  Term norm = {Term::Apply, OpKind::RmsNorm, 0, 0, {}, {of, weight}};
  for (const Attr &attr : at.op.attrs)
    if (isMeant(at.op.kind, attr.key))
      norm.attrs.push_back(attr);
  if (isBack) {
    norm.result = 1;
    TermId statistics = terms_.of(norm);
    norm.op = OpKind::RmsNormBwd;
    norm.operands = {states[0].term, of, weight, statistics};
  }
  Values values;
  for (size_t r = 0; r < made->size(); ++r) {
    State &state = (*made)[r];
    norm.result = static_cast<uint8_t>(r);
    state.term = terms_.rounded(typeOf(at, at.op.results[r]).dtype, terms_.of(norm));
    terms_.setShape(state.term, state->whole);
    for (const Place &place : sums)
      state.put({place.axis, Place::Part});
    values.push_back(Value::of(std::move(state)));
  }
  return values;
}

} // namespace shardc::plan::spec
