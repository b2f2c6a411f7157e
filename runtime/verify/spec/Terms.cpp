// Stores each term once, by hash.
#include "runtime/verify/spec/Terms.h"

namespace shardc::plan::spec {
namespace {

size_t mixed(size_t hash, uint64_t part) {
  return (hash ^ static_cast<size_t>(part)) * size_t{0x9e3779b97f4a7c15} + (hash >> 29);
}

size_t hashOf(const Term &term) {
  size_t hash =
      mixed(static_cast<size_t>(term.kind) * 8 + term.result, static_cast<uint64_t>(term.number));
  hash = mixed(hash, static_cast<uint64_t>(term.op));
  for (const Attr &attr : term.attrs)
    hash = mixed(mixed(hash, static_cast<uint64_t>(attr.key)), static_cast<uint64_t>(attr.i));
  for (TermId operand : term.operands)
    hash = mixed(hash, operand);
  return hash;
}

bool areEqual(const Term &a, const Term &b) {
  return a.kind == b.kind && a.op == b.op && a.result == b.result && a.number == b.number &&
         a.operands == b.operands && std::ranges::equal(a.attrs, b.attrs, areSame);
}

/// Whether results of this type are rounded to it. Other types hold exact numbers, or the ops that
/// produce them define the rounding.
bool rounds(DType type) { return type == DType::BF16 || type == DType::F16; }

} // namespace

TermId Terms::of(const Term &term) {
  size_t hash = hashOf(term);
  auto free = [&](size_t from) {
    while (slots_[from & (slots_.size() - 1)] != kNoTerm)
      ++from;
    return from & (slots_.size() - 1);
  };
  for (size_t at = hash;; ++at) {
    TermId id = slots_[at & (slots_.size() - 1)];
    if (id == kNoTerm)
      break;
    if (hashes_[id] == hash && areEqual(terms_[id], term)) {
      notes_[id].isOfModel |= readsModel_;
      return id;
    }
  }
  auto id = static_cast<TermId>(terms_.size());
  terms_.push_back(term);
  hashes_.push_back(hash);
  notes_.emplace_back().isOfModel = readsModel_;
  slots_[free(hash)] = id;
  if (terms_.size() * 2 > slots_.size()) {
    slots_.assign(slots_.size() * 2, kNoTerm);
    for (TermId each = 1; each < terms_.size(); ++each)
      slots_[free(hashes_[each])] = each;
  }
  return id;
}

TermId Terms::rounded(DType type, TermId term) {
  const Term &of = terms_[term];
  if (!rounds(type) || (of.kind == Term::Rounded && of.number == static_cast<int64_t>(type)))
    return term;
  Type shape = notes_[term].shape;
  TermId made = this->of({Term::Rounded, OpKind::Cast, 0, static_cast<int64_t>(type), {}, {term}});
  if (shape.rank != 0)
    setShape(made, shape);
  return made;
}

TermId Terms::bare(TermId term) const {
  while (terms_[term].kind == Term::Rounded)
    term = terms_[term].operands.front();
  return term;
}

} // namespace shardc::plan::spec
