// Adds gradients over microbatches and pieces, and parts of one attention.
#include <algorithm>

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {
namespace {

/// Adds the slices or pieces that `more` covers. Returns false if both cover one of them.
bool addCover(State &sum, const Cover &more) {
  Cover &cover = sum.edit().cover;
  for (size_t i = 0; i < more.slices.size(); ++i) {
    if (cover.slices[i] && more.slices[i])
      return false;
    cover.slices[i] = cover.slices[i] || more.slices[i];
  }
  if (std::ranges::find(cover.slices, false) != cover.slices.end())
    return true;
  if (cover.isPiece())
    sum.remove(static_cast<uint16_t>(cover.axis));
  sum.edit().cover = Cover();
  return true;
}

bool arePlacedAlike(const State &a, const State &b) {
  return a->places == b->places && a->order == b->order && a->multiple == b->multiple;
}

} // namespace

std::vector<Contribution> contributionsOf(const Terms &terms, const State &state) {
  if (state.isSum())
    return state.sum;
  std::vector<Contribution> made;
  std::vector<TermId> left = {state.term};
  while (!left.empty()) { // without roundings, which are the job's choice
    TermId term = terms.bare(left.back());
    left.pop_back();
    if (terms[term].kind == Term::Apply && terms[term].op == OpKind::Add)
      left.insert(left.end(), terms[term].operands.begin(), terms[term].operands.end());
    else
      made.push_back({term, state.microbatch, state.microbatch});
  }
  std::ranges::sort(made);
  return made;
}

/// Adds a piece of a partial sum to the sum of other microbatches or pieces.
State Compute::addedPiece(const State &a, const State &b) {
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
  bool isPiece = place && place->kind == Place::Part && arePlacedAlike(sum, b) &&
                 sum->cover.axis == b->cover.axis && sum->cover.of == more;
  if (!isPiece || (isFirst && !addContributions(sum.sum, more)))
    return refuse("adds a piece of another sum");
  if (!isFirst && !addCover(sum, b->cover))
    return refuse("counts the same pieces twice");
  return sum;
}

/// Adds parts of one attention, or pieces of one sum.
State Compute::addedParts(const State &a, const State &b) {
  const Place *pieces = a->cover.isPiece() ? a.at(static_cast<uint16_t>(a->cover.axis)) : nullptr;
  if (a->cover.axis != b->cover.axis || a.term != b.term || a.microbatch != b.microbatch ||
      (a->cover.isPiece() && (!pieces || pieces->kind != Place::Part)))
    return refuse("adds parts of different sums");
  State sum = b;
  return addCover(sum, a->cover) ? sum : refuse("counts the same keys or pieces twice");
}

State Compute::added(const State &a, const State &b) {
  why_.clear();
  if (terms_.isZero(a.term) || terms_.isZero(b.term))
    return terms_.isZero(a.term) ? b : a;
  if (b->cover.isPiece() && (a.isSum() || a->cover.isAll()))
    return addedPiece(a, b);
  if (!arePlacedAlike(a, b))
    return refuse("adds values with different placements");
  if (!a->cover.isAll() || !b->cover.isAll())
    return addedParts(a, b);
  State sum = b;
  sum.sum = contributionsOf(terms_, a);
  if (!addContributions(sum.sum, contributionsOf(terms_, b)))
    return refuse("adds a contribution twice");
  sum.term = kNoTerm, sum.microbatch = a.microbatch == b.microbatch ? b.microbatch : -1;
  return sum;
}

} // namespace shardc::plan::spec
