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

/// The largest number of elements that divides all pieces of a value which the segment views.
int64_t Walk::sliceOfPieces(const At &at) {
  const Segment &segment = at.role.segment();
  int64_t slice = typeOf(at, at.op.operands[0]).numel();
  for (const Op &op : segment.ops) {
    if (op.kind != OpKind::View || op.operands[0] != at.op.operands[0])
      continue;
    int64_t coef = op.getInt(AttrKey::coef);
    int64_t size = coef == 0 ? typeOf(at, op.results[0]).numel()
                             : coef * mesh_.members(mesh_.axesOf(op.group));
    slice = std::gcd(std::gcd(slice, op.getInt(AttrKey::offset)), size);
  }
  return slice;
}

/// A view of some elements of a value that is whole here: one piece, or several side by side.
State Walk::pieceOf(const At &at, State state, int64_t offset, int64_t size) {
  int64_t all = typeOf(at, at.op.operands[0]).numel(), slice = sliceOfPieces(at);
  bool isPiece = state->order.isOfDims() && !state.isSum() && state->cover.isAll() && size > 0 &&
                 offset >= 0 && offset + size <= all;
  if (!isPiece)
    return refuse(at, "views some elements of a value that is divided");
  if (all / slice > kPiecesMax)
    return refuse(
        at, "cuts {} elements into pieces that only {} divides; at most {} slices are followed",
        all, slice, kPiecesMax);
  auto count = static_cast<size_t>(all / slice);
  auto axis = static_cast<uint16_t>(kPieceAxes + count);
  state.put({axis, Place::Shard, mesh_.wholeOuter(state, 1)});
  Cover &cover = state.edit().cover;
  cover.axis = axis;
  cover.slices.assign(count, false);
  std::fill_n(cover.slices.begin() + offset / slice, size / slice, true);
  return state;
}

/// Joins the pieces of a value: the operands must be all of its pieces in order.
Values Walk::followJoin(const At &at) {
  auto withoutPiece = [](State state, uint16_t axis) {
    state.remove(axis);
    state.edit().cover = Cover();
    return state;
  };
  const State &first = operand(at, 0).state;
  auto axis = static_cast<uint16_t>(first->cover.axis);
  State whole = withoutPiece(first, axis);
  int64_t joined = 0; // slices
  for (size_t i = 0; i < at.op.operands.size(); ++i) {
    const State &piece = operand(at, i).state;
    const Place *place = piece.at(axis);
    const std::vector<bool> &slices = piece->cover.slices;
    auto begin = std::ranges::find(slices, true), end = std::find(begin, slices.end(), false);
    State like = withoutPiece(piece, axis);
    like.edit().whole = whole->whole;
    bool isNext = operand(at, i).isOne() && place != nullptr && place->kind == Place::Shard &&
                  piece->cover.axis == axis && mesh_.localOuter(like, place->outer) == 1 &&
                  begin - slices.begin() == joined &&
                  std::find(end, slices.end(), true) == slices.end() &&
                  mesh_.shards(piece, axis).times(typeOf(at, at.op.operands[i]).numel()) ==
                      typeOf(at, at.op.results[0]).numel() &&
                  like == whole;
    if (!isNext)
      return refuse(at, "operand {} is not the piece of the value for this position", i);
    joined = end - slices.begin();
  }
  if (joined != mesh_.size(axis))
    return refuse(at, "lacks the last pieces of the value");
  return {std::move(whole)};
}

/// Whether `dots` is the mean over columns of the product of `factors`, where each of `parts` ranks
/// holds an equal share of it.
bool Walk::isMeanOf(const State &dots, const std::vector<TermId> &factors, int64_t columns,
                    int64_t parts) {
  const Term &term = terms_[dots.term];
  double mean = static_cast<double>(dots->multiple.over * columns * parts) /
                static_cast<double>(dots->multiple.under);
  for (const Attr &attr : term.attrs)
    mean *= attr.key == AttrKey::scale ? attr.f : 1;
  return term.kind == Term::Apply && term.op == OpKind::DotRows && term.operands == factors &&
         std::abs(mean - 1) < 1e-6;
}

/// Follows a norm over a part of the columns. It equals that part of the whole norm if it uses the
/// mean over all columns.
Values Walk::followNormPart(const At &at) {
  bool isBack = at.op.kind == OpKind::RmsNormPartBwd;
  Call call = callOf(at, at.op.kind, at.op.operands.size());
  call.group.clear();
  size_t x = isBack ? 1 : 0;
  State dy = operand(at, 0).state;
  TermId of = operand(at, x).state.term, weight = operand(at, x + 1).state.term;
  const Type &whole = operand(at, x).state->whole;
  int64_t columns = whole.rank == 0 ? 0 : whole.shape[whole.rank - 1u], parts = 1;
  // Axes over which the gradient is a sum; each rank has an equal share of the mean.
  std::vector<Place> sums;
  std::ranges::copy_if(dy->places, std::back_inserter(sums),
                       [&](const Place &place) { return isBack && place.kind == Place::Part; });
  for (const Place &place : sums)
    dy.remove(place.axis), parts *= mesh_.size(place.axis);
  bool isMean = isMeanOf(operand(at, x + 2).state, {of, of}, columns, 1) &&
                (!isBack || isMeanOf(operand(at, 4).state, {dy.term, of, weight}, columns, parts));
  if (!isMean)
    return refuse(at, "does not take the means of whole rows");
  std::vector<State> means;
  means.reserve(call.operands.size());
  call.operands[0].state = &dy;
  for (size_t i = x + 2; i < call.operands.size(); ++i) {
    means.push_back(operand(at, i).state);
    means.back().edit().multiple = Multiple();
    call.operands[i].state = &means.back();
  }
  std::vector<State> made = computed(at, call);
  Term norm = {Term::Apply, OpKind::RmsNorm, 0, 0, meantAttrs(at.op.kind, at.op.attrs),
               {of, weight}};
  if (isBack) {
    norm.result = 1;
    TermId statistics = terms_.of(norm);
    norm.op = OpKind::RmsNormBwd;
    norm.operands = {dy.term, of, weight, statistics};
  }
  for (size_t r = 0; r < made.size(); ++r) {
    norm.result = static_cast<uint8_t>(r);
    made[r].term = terms_.rounded(typeOf(at, at.op.results[r]).dtype, terms_.of(norm));
    terms_.setShape(made[r].term, made[r]->whole);
    for (const Place &place : sums)
      made[r].put({place.axis, Place::Part});
  }
  return valuesOf(std::move(made));
}

} // namespace shardc::plan::spec
