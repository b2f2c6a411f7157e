// 8-bit factors and their scales: each product is followed back to the ops that made both.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "Contract.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

constexpr int64_t kFromScaleToScale = 4; ///< elements between the scales of weights

class Scales {
public:
  Scales(const Plan &plan, const Positions &positions, const std::vector<Term> &terms)
      : plan_(plan), positions_(positions), terms_(terms) {}

  std::string find() const {
    for (const Term &term : terms_) {
      if (is(term, OpKind::GroupedMatMulScaled) && !isWeight(term.from[1], at(term.from[3])))
        return fmt::format("rank {}: experts' weights are taken with other scales than their own",
                           term.rank);
      for (size_t f = 0; is(term, OpKind::MatMulScaled) && f < 2; ++f)
        if (int factor = unturned(term.from[f]);
            !areOfOne(at(factor), at(term.from[f + 2])) && !isWeight(factor, at(term.from[f + 2])))
          return fmt::format("rank {}: a product takes factor {} with another scale than its own",
                             term.rank, f);
    }
    return {};
  }

private:
  const Term &at(int term) const { return terms_[static_cast<size_t>(term)]; }
  static bool is(const Term &term, OpKind kind) {
    return term.op != nullptr && term.op->kind == kind;
  }

  /// The factor before transpositions.
  int unturned(int factor) const {
    while (is(at(factor), OpKind::Transpose))
      factor = at(factor).from[0];
    return factor;
  }

  static bool areOfOne(const Term &factor, const Term &scale) {
    if (factor.op == nullptr || factor.op != scale.op || factor.rank != scale.rank ||
        factor.run != scale.run)
      return false;
    Facts facts = factsOf(*factor.op);
    if (facts.scalesFollow)
      return scale.result == factor.result + 1;
    bool hasOther = factor.result + 1 == static_cast<uint32_t>(facts.otherScale);
    int8_t result = hasOther ? facts.otherScale : facts.scale;
    return result >= 0 && scale.result == static_cast<uint32_t>(result) &&
           factor.result != scale.result;
  }

  /// Whether the factor is a weight kept in 8 bits, and `scale` is its scale.
  bool isWeight(int factor, const Term &scale) const {
    std::optional<Weights> weights = weightsOf(plan_, positions_, terms_, factor);
    if (!weights || !is(scale, OpKind::View) || !is(at(scale.from[0]), OpKind::WeightScales))
      return false;
    int64_t number = 0;
    for (const Param &param : plan_.params) {
      if (param.type.dtype != DType::F8E4M3)
        continue;
      if (param.block == weights->block && param.offset == weights->begin &&
          param.type.numel() == at(factor).numel)
        return scale.begin == (number + firstOf(param, scale.rank)) * kFromScaleToScale &&
               isOfAmaxes(factor, at(scale.from[0]).from[0]);
      number += param.stackedRow == 0   ? 1
                : param.whole.rank == 0 ? param.type.shape[0]
                                        : param.whole.shape[0];
    }
    return false;
  }

  /// The index of the first tensor of a stack that the rank has.
  int64_t firstOf(const Param &param, int64_t rank) const {
    int64_t first = 0;
    for (const Split &split : param.splits)
      if (param.stackedRow > 0 && split.dim == 0)
        first = param.type.shape[0] * positions_.in(split.group, rank);
    return first;
  }

  /// Whether all ranks have quantized their parts of the weight with these amaxes.
  bool isOfAmaxes(int weight, int amaxes) const {
    const Term &term = at(weight);
    if (is(term, OpKind::View))
      return isOfAmaxes(term.from[0], amaxes);
    if (is(term, OpKind::AllGather))
      return std::ranges::all_of(term.members,
                                 [&](int member) { return isOfAmaxes(member, amaxes); });
    if (!is(term, OpKind::QuantizeShard))
      return false;
    const Term &its = at(term.from[1]), &these = at(amaxes);
    return term.from[1] == amaxes ||
           (is(its, OpKind::AllReduceMax) && its.members == these.members);
  }

  const Plan &plan_;
  const Positions &positions_;
  const std::vector<Term> &terms_;
};

} // namespace

std::string findScaleBreak(const Plan &plan, const Positions &positions,
                           const std::vector<Term> &terms) {
  return Scales(plan, positions, terms).find();
}

} // namespace shardc::plan::oracle
