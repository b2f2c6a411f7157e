// Adds gradients over microbatches and pieces, and parts of one attention.
#include <algorithm>

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

std::vector<Contribution> contributionsOf(const Terms &terms, const State &state) {
  if (state.isSum())
    return state.sum;
  std::vector<TermId> summands;
  appendSummands(terms, state.term, summands);
  std::vector<Contribution> made;
  for (TermId summand : summands)
    made.push_back({summand, state.microbatch, state.microbatch});
  std::ranges::sort(made);
  return made;
}

/// Adds a piece of a partial sum to the sum of other microbatches or pieces.
std::optional<State> Compute::addedPiece(const State &a, const State &b) {
  auto axis = static_cast<uint16_t>(b->cover.axis);
  const Place *place = b.at(axis);
  State sum = a;
  std::vector<Contribution> more = contributionsOf(terms_, b);
  bool isFirst = a->cover.isAll();
  if (isFirst) {
    sum.sum = contributionsOf(terms_, a), sum.term = kNoTerm;
    sum.microbatch = a.microbatch == b.microbatch ? a.microbatch : -1;
    Cover &cover = sum.edit().cover;
    cover = b->cover, cover.of = more;
    sum.put({axis, Place::Part});
  }
  bool isPiece = place && place->kind == Place::Part && sum->places == b->places &&
                 a->order == b->order && a->multiple == b->multiple && a->pooled == b->pooled &&
                 sum->cover.axis == b->cover.axis && sum->cover.of == more;
  if (!isPiece || (isFirst && !addContributions(sum.sum, more)))
    return refuse("adds a piece of another sum");
  for (size_t i = 0; i < b->cover.slices.size() && !isFirst; ++i) {
    if (sum->cover.slices[i] && b->cover.slices[i])
      return refuse("counts the same pieces twice");
    sum.edit().cover.slices[i] = sum->cover.slices[i] || b->cover.slices[i];
  }
  if (std::ranges::find(sum->cover.slices, false) == sum->cover.slices.end()) {
    sum.remove(axis);
    sum.edit().cover = Cover();
  }
  return sum;
}

std::optional<State> Compute::added(const State &a, const State &b) {
  State sum = b;
  auto isZero = [&](const State &state) {
    const Term &term = terms_[state.term];
    return term.kind == Term::Apply && term.op == OpKind::Fill && term.attrs.empty();
  };
  if (isZero(a) || isZero(b))
    return isZero(a) ? b : a;
  if (b->cover.isPiece() && (a.isSum() || a->cover.isAll()))
    return addedPiece(a, b);
  if (a->places != b->places || !(a->order == b->order) || !(a->multiple == b->multiple) ||
      a->pooled != b->pooled)
    return refuse("adds values with different placements");
  if (!a->cover.isAll() || !b->cover.isAll()) { // parts of one attention
    const Place *pieces = a->cover.isPiece() ? a.at(static_cast<uint16_t>(a->cover.axis)) : nullptr;
    if (a->cover.axis != b->cover.axis || a.term != b.term || a.microbatch != b.microbatch ||
        (a->cover.isPiece() && (!pieces || pieces->kind != Place::Part)))
      return refuse("adds parts of different sums");
    for (size_t i = 0; i < a->cover.slices.size(); ++i) {
      if (a->cover.slices[i] && b->cover.slices[i])
        return refuse("counts the same keys or pieces twice");
      sum.edit().cover.slices[i] = a->cover.slices[i] || b->cover.slices[i];
    }
    if (std::ranges::find(sum->cover.slices, false) == sum->cover.slices.end()) {
      if (pieces)
        sum.remove(static_cast<uint16_t>(sum->cover.axis));
      sum.edit().cover = Cover();
    }
    return sum;
  }
  sum.sum = contributionsOf(terms_, a);
  if (!addContributions(sum.sum, contributionsOf(terms_, b)))
    return refuse("adds a contribution twice");
  sum.term = kNoTerm, sum.microbatch = a.microbatch == b.microbatch ? b.microbatch : -1;
  return sum;
}

} // namespace shardc::plan::spec
