// Types in which ops take parameters: each value with elements of a parameter is followed back,
// through casts, gathers and updates, to its block.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Splits.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

class TypeCheck {
public:
  TypeCheck(const Plan &plan, const Positions &positions, const std::vector<Term> &terms)
      : plan_(plan), positions_(positions), terms_(terms) {}

  std::string run() const {
    for (const Term &term : terms_) {
      if (term.op == nullptr || term.result != 0 || isAlias(*term.op) ||
          (factsOf(*term.op).movesPadding && term.op->kind != OpKind::EmbeddingShard))
        continue;
      for (int from : term.from)
        if (std::string problem = check(*term.op, at(from)); !problem.empty())
          return problem;
    }
    return {};
  }

  std::optional<Weights> weightsOf(int term) const { return weightsOf(at(term)); }

private:
  const Term &at(int term) const { return terms_[static_cast<size_t>(term)]; }

  /// The weights of this rank's part of a block.
  Weights ownPart(int32_t block, const Term &term) const {
    const Block &each = plan_.blocks[static_cast<size_t>(block)];
    return {block, positions_.begin(each, term.numel, term.rank).value_or(0)};
  }

  std::optional<Weights> loaded(const Term &term) const {
    if (term.cell == nullptr ||
        (term.cell->kind != CellKind::Master && term.cell->kind != CellKind::Weight &&
         term.cell->kind != CellKind::WeightShard))
      return std::nullopt;
    return ownPart(blockOf(*term.cell), term);
  }

  /// The elements of a block's weights that the term has; empty for gradients, moments and
  /// activations.
  std::optional<Weights> weightsOf(const Term &term) const {
    if (term.op == nullptr)
      return loaded(term);
    const Op &op = *term.op;
    switch (factsOf(op).weights) {
    case WeightSource::OwnPart:
      return ownPart(static_cast<int32_t>(op.getInt(AttrKey::block)), term);
    case WeightSource::Updated: {
      bool isMoment = term.result > 0 && term.result + 1 < stateOperandOf(op);
      return isMoment
                 ? std::nullopt
                 : std::optional(ownPart(static_cast<int32_t>(op.getInt(AttrKey::block)), term));
    }
    case WeightSource::Operand:
      return weightsOf(at(term.from[0]));
    case WeightSource::Members:
      return weightsOf(at(term.members[0]));
    case WeightSource::View: {
      std::optional<Weights> whole = weightsOf(at(term.from[0]));
      if (whole)
        whole->begin += term.begin;
      return whole;
    }
    case WeightSource::None:
      return std::nullopt;
    }
    return std::nullopt;
  }

  std::string check(const Op &op, const Term &taken) const {
    std::optional<Weights> weights = weightsOf(taken);
    for (const Param &param : plan_.params)
      if (weights && param.block == weights->block && param.type.dtype != taken.dtype &&
          param.offset < weights->begin + taken.numel &&
          weights->begin < param.offset + param.type.numel())
        return fmt::format("rank {}: '{}' takes parameter '{}' in another type than its own",
                           taken.rank, opInfo(op).name, param.name);
    return {};
  }

  const Plan &plan_;
  const Positions &positions_;
  const std::vector<Term> &terms_;
};

} // namespace

std::optional<Weights> weightsOf(const Plan &plan, const Positions &positions,
                                 const std::vector<Term> &terms, int term) {
  return TypeCheck(plan, positions, terms).weightsOf(term);
}

bool joinsSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                 const std::vector<Term> &terms, const Term &term) {
  auto rankOf = [&](int member) { return terms[static_cast<size_t>(member)].rank; };
  if (term.op == nullptr || term.op->kind != OpKind::AllGather)
    return false;
  int first = term.members.front();
  std::optional<Weights> held = weightsOf(plan, positions, terms, first);
  return held && !std::ranges::all_of(term.members, [&](int member) {
           return splits.areSame(held->block, rankOf(member), rankOf(first));
         });
}

Number numberOfSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                      const std::vector<Term> &terms, int term) {
  std::optional<Weights> held = weightsOf(plan, positions, terms, term);
  const Term *each = &terms[static_cast<size_t>(term)];
  if (!held)
    return 0;
  Number number = splits.of(held->block, held->begin, each->numel, each->rank);
  while (each->op != nullptr && !joinsSplits(plan, positions, splits, terms, *each)) {
    const bool isGather = each->op->kind == OpKind::AllGather;
    if (!isGather && each->op->kind != OpKind::View && each->op->kind != OpKind::Cast)
      return number; // made of no other elements
    each = &terms[static_cast<size_t>(isGather ? each->members.front() : each->from[0])];
  }
  return each->op == nullptr ? number : 0;
}

std::string findTypeBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms) {
  return TypeCheck(plan, positions, terms).run();
}

} // namespace shardc::plan::oracle
