// Logical values by number: an op, the attributes that are part of the value, and the numbers of
// its operands. Equal terms have equal numbers, so a value that is recomputed, gathered again or
// prefetched is recognised without further rules. Rounding to a type is a term of its own. Stores
// each term once, by hash.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::spec {

using TermId = uint32_t;
inline constexpr TermId kNoTerm = 0; ///< stands for sums, which have no term

/// Whether attributes have one key and value.
inline bool areSame(const Attr &a, const Attr &b) { return a.key == b.key && a.i == b.i; }

struct Term {
  enum Kind : uint8_t {
    Apply,        ///< result `result` of an op
    Rounded,      ///< the operand, rounded to type `number`
    Loaded,       ///< result `number` of batch.load
    Parameter,    ///< parameter `number` of the specification, in the optimizer's type
    FirstMoment,  ///< of that parameter
    SecondMoment, ///< of that parameter
    Updated,      ///< result `result` of the optimizer; operands: the parameter and its moments
    Kept,         ///< part `result` of a cell of kind `number`, which keeps it between steps
  };
  Kind kind = Apply;
  OpKind op = OpKind::Add;
  uint8_t result = 0;
  int64_t number = 0;
  std::vector<Attr> attrs; ///< sorted by key; extents are those of whole values
  std::vector<TermId> operands;

  /// Sums are equal in any order of their operands: sorts these by their numbers.
  void sortSummands() {
    if (kind == Apply && op == OpKind::Add)
      std::ranges::sort(operands);
  }
};

/// All terms of a comparison, each stored once. Numbers stay valid for the life of the object;
/// references to terms do not survive of().
class Terms {
public:
  Terms() : terms_(1), notes_(1), hashes_(1), slots_(1024) {} // kNoTerm
  /// The number of the term, which is added if it is new.
  TermId of(const Term &term) {
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

  TermId of(Term::Kind kind, int64_t number) { return of({kind, OpKind::Add, 0, number, {}, {}}); }
  /// Says whether terms that are requested from now on belong to the model.
  void readsModel(bool reads) { readsModel_ = reads; }
  bool isOfModel(TermId term) const { return notes_[term].isOfModel; }
  /// The term rounded to a type; the term itself if the type represents it exactly.
  TermId rounded(DType type, TermId term) {
    const Term &of = terms_[term];
    if (!rounds(type) || (of.kind == Term::Rounded && of.number == static_cast<int64_t>(type)))
      return term;
    Type shape = notes_[term].shape;
    TermId made =
        this->of({Term::Rounded, OpKind::Cast, 0, static_cast<int64_t>(type), {}, {term}});
    if (shape.rank != 0)
      setShape(made, shape);
    return made;
  }

  /// The term without roundings.
  TermId bare(TermId term) const {
    while (terms_[term].kind == Term::Rounded)
      term = terms_[term].operands.front();
    return term;
  }

  /// Whether all elements are zeros, as an op `fill` makes them.
  bool isZero(TermId term) const {
    const Term &of = terms_[bare(term)];
    return of.kind == Term::Apply && of.op == OpKind::Fill && of.attrs.empty();
  }

  const Term &operator[](TermId term) const { return terms_[term]; }
  size_t count() const { return terms_.size(); }

  /// The shape of the whole value; rank 0 if still unknown.
  const Type &shape(TermId term) const { return notes_[term].shape; }
  void setShape(TermId term, const Type &shape) {
    if (notes_[term].shape.rank == 0)
      notes_[term].shape = shape;
  }
  /// Adds a shape in which the specification views the term. viewLike() finds the view of which
  /// ranks have a part of type `part`.
  void addView(TermId term, const Type &shape) { notes_[term].views.push_back(shape); }
  const Type *viewLike(TermId term, const Type &part) const {
    for (const Type &view : notes_[term].views) {
      bool isLike = view.rank == part.rank && view.numel() % part.numel() == 0;
      for (uint8_t d = 0; isLike && d < part.rank; ++d)
        isLike = view.shape[d] % part.shape[d] == 0;
      if (isLike)
        return &view;
    }
    return nullptr;
  }
  /// The name in the specification; empty if only a plan has the value.
  const std::string &name(TermId term) const { return notes_[term].name; }
  void setName(TermId term, const std::string &name) {
    if (notes_[term].name.empty())
      notes_[term].name = name;
  }

private:
  static size_t mixed(size_t hash, uint64_t part) {
    return (hash ^ static_cast<size_t>(part)) * size_t{0x9e3779b97f4a7c15} + (hash >> 29);
  }

  static size_t hashOf(const Term &term) {
    size_t hash =
        mixed(static_cast<size_t>(term.kind) * 8 + term.result, static_cast<uint64_t>(term.number));
    hash = mixed(hash, static_cast<uint64_t>(term.op));
    for (const Attr &attr : term.attrs)
      hash = mixed(mixed(hash, static_cast<uint64_t>(attr.key)), static_cast<uint64_t>(attr.i));
    for (TermId operand : term.operands)
      hash = mixed(hash, operand);
    return hash;
  }

  static bool areEqual(const Term &a, const Term &b) {
    return a.kind == b.kind && a.op == b.op && a.result == b.result && a.number == b.number &&
           a.operands == b.operands && std::ranges::equal(a.attrs, b.attrs, areSame);
  }

  /// Whether results of this type are rounded to it. Other types hold exact numbers, or the ops
  /// that produce them define the rounding.
  static bool rounds(DType type) { return type == DType::BF16 || type == DType::F16; }

  struct Note {
    Type shape;
    std::vector<Type> views;
    std::string name;
    bool isOfModel = false;
  };
  std::vector<Term> terms_;
  std::vector<Note> notes_; ///< of each term
  std::vector<size_t> hashes_;
  std::vector<TermId> slots_; ///< hash table, its size a power of 2; kNoTerm: a free slot
  bool readsModel_ = false;
};

} // namespace shardc::plan::spec
