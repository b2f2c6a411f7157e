// Logical values by number: an op, the attributes that mean something, and the numbers of its
// operands. Equal terms have one number, so a value that is recomputed, gathered again or
// prefetched is the same without any rule. Rounding to a type is a term of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::spec {

using TermId = uint32_t;
inline constexpr TermId kNoTerm = 0; ///< of sums, which are no term

struct Term {
  enum Kind : uint8_t {
    Apply,        ///< result `result` of an op
    Rounded,      ///< its operand in the type `number`
    Loaded,       ///< result `number` of batch.load
    Parameter,    ///< parameter `number` of the specification, as the optimizer has it
    FirstMoment,  ///< of that parameter
    SecondMoment, ///< of that parameter
    Updated,      ///< result `result` of the optimizer, of parameter, moments and gradient
    Kept,         ///< what a cell of kind `number` holds from step to step, of its part `result`
  };
  Kind kind = Apply;
  OpKind op = OpKind::Add;
  uint8_t result = 0;
  int64_t number = 0;
  std::vector<Attr> attrs; ///< sorted by key, of whole values
  std::vector<TermId> operands;
};

class Terms {
public:
  Terms() : terms_(1), notes_(1), hashes_(1), slots_(1024) {} // kNoTerm
  TermId of(const Term &term);
  TermId of(Term::Kind kind, int64_t number) { return of({kind, OpKind::Add, 0, number, {}, {}}); }
  /// Whether terms that are asked for from now on are of the model.
  void readsModel(bool reads) { readsModel_ = reads; }
  bool isOfModel(TermId term) const { return notes_[term].isOfModel; }
  /// The term in a type; itself where the type holds each of its numbers.
  TermId rounded(DType type, TermId term);
  /// Without roundings.
  TermId bare(TermId term) const;

  const Term &operator[](TermId term) const { return terms_[term]; }
  size_t count() const { return terms_.size(); }

  /// The shape of the whole value; rank 0 where it is not known yet.
  const Type &shape(TermId term) const { return notes_[term].shape; }
  void setShape(TermId term, const Type &shape) {
    if (notes_[term].shape.rank == 0)
      notes_[term].shape = shape;
  }
  /// As what the specification views it, of as many elements as ranks have a part of.
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
  /// The name that the specification has for it; empty of what only a plan makes.
  const std::string &name(TermId term) const { return notes_[term].name; }
  void setName(TermId term, const std::string &name) {
    if (notes_[term].name.empty())
      notes_[term].name = name;
  }

private:
  struct Note {
    Type shape;
    std::vector<Type> views;
    std::string name;
    bool isOfModel = false;
  };
  std::vector<Term> terms_;
  std::vector<Note> notes_; ///< of each term
  std::vector<size_t> hashes_;
  std::vector<TermId> slots_; ///< by hash, a power of 2 of them; kNoTerm: free
  bool readsModel_ = false;
};

/// The summands of a sum of gradients, without their roundings, which the job chooses.
void appendSummands(const Terms &terms, TermId term, std::vector<TermId> &summands);

} // namespace shardc::plan::spec
