// Checks that each factor of 8 bits comes with the scale that it was quantised with, in the segment
// that made both or through cells.
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Operands of `matmul_scaled`: two factors, and the scale of each as many operands on.
constexpr size_t kFactors = operandIndex<OpKind::MatMulScaled>("ascale");
static_assert(kFactors == 2 && operandIndex<OpKind::MatMulScaled>("bscale") == kFactors + 1);

/// A pair of cells from which a segment takes a factor and its scale.
struct CellPair {
  uint32_t factor, scale;
  int64_t factorShift, scaleShift;
  Spot at;
};

/// A cell from which a segment takes a weight, of which it has the scale.
struct CellOfWeight {
  uint32_t factor;
  int64_t row; ///< of the scales
  Spot at;
};

class ScaleOfFactorCheck {
public:
  ScaleOfFactorCheck(Inspection &report, uint32_t role)
      : report_(report), roleIndex_(role), role_(report.plan().roles[role]) {}

  void run() {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      checkSegment(s);
    for (const Segment &segment : role_.segments)
      checkLeft(segment);
  }

private:
  using Boundary = Segment::Boundary;

  void checkSegment(uint32_t s) {
    const Segment &segment = role_.segments[s];
    if (std::ranges::none_of(segment.ops,
                             [](const Op &op) { return op.kind == OpKind::MatMulScaled; }))
      return;
    std::vector<const Boundary *> entered(segment.values.size(), nullptr);
    for (const Boundary &in : segment.ins)
      entered[in.value] = &in;
    for (uint32_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      for (size_t f = 0; op.kind == OpKind::MatMulScaled && f < kFactors; ++f) {
        ValueId factor = op.operands[f], scale = op.operands[f + kFactors];
        const Boundary *factorIn = entered[unturned(segment, factor)], *scaleIn = entered[scale];
        std::optional<int64_t> row = rowOfWeightScale(role_, segment, scale);
        bool isWeight = row && isWeightOfRow(report_.plan(), role_, segment, factor, *row);
        if (factorIn && scaleIn)
          pairs_.push_back(
              {factorIn->cell, scaleIn->cell, factorIn->shift, scaleIn->shift, {roleIndex_, s, i}});
        else if (factorIn && row && !isWeight)
          weights_.push_back({factorIn->cell, *row, {roleIndex_, s, i}});
        else if (!areOfOne(segment, factor, scale) && !isWeight)
          refuse({roleIndex_, s, i}, segment, factor, scale);
      }
    }
  }

  /// What a segment leaves in the cells of a pair belongs together, and in others is the weight.
  void checkLeft(const Segment &segment) {
    if (pairs_.empty() && weights_.empty())
      return;
    std::vector<const Boundary *> left(role_.cells.size(), nullptr);
    for (const Boundary &out : segment.outs)
      left[out.cell] = &out;
    for (const CellPair &pair : pairs_) {
      const Boundary *factor = left[pair.factor], *scale = left[pair.scale];
      bool isPair = factor && scale && areOfOne(segment, factor->value, scale->value) &&
                    factor->shift - pair.factorShift == scale->shift - pair.scaleShift;
      if ((factor || scale) && !isPair)
        report_.add(finding::FactorAndScaleNotLeft, pair.at, segment.name,
                    role_.cells[pair.factor].name, role_.cells[pair.scale].name);
    }
    for (const CellOfWeight &weight : weights_)
      if (const Boundary *factor = left[weight.factor];
          factor != nullptr &&
          !isWeightOfRow(report_.plan(), role_, segment, factor->value, weight.row))
        report_.add(finding::WeightNotLeft, weight.at, segment.name,
                    role_.cells[weight.factor].name);
  }

  /// What transposes have made a value of.
  static ValueId unturned(const Segment &segment, ValueId value) {
    while (segment.values[value].def != kNone &&
           segment.ops[segment.values[value].def].kind == OpKind::Transpose)
      value = segment.ops[segment.values[value].def].operands[0];
    return value;
  }

  /// Whether one op has quantised the factor, which may be turned since, and made the scale.
  static bool areOfOne(const Segment &segment, ValueId factor, ValueId scale) {
    const Value &q = segment.values[unturned(segment, factor)], &by = segment.values[scale];
    if (q.def == kNone || q.def != by.def)
      return false;
    return opInfo(segment.ops[q.def]).scaleOf[q.defResult] == by.defResult;
  }

  void refuse(Spot at, const Segment &segment, ValueId factor, ValueId scale) {
    report_.addAbout(finding::ScaleOfOther, at, segment.values[factor].name,
                     segment.values[factor].name, segment.values[scale].name);
  }

  Inspection &report_;
  uint32_t roleIndex_;
  const Role &role_;
  std::vector<CellPair> pairs_;
  std::vector<CellOfWeight> weights_;
};

} // namespace

void checkFactorScales(Inspection &inspection, uint32_t role) {
  ScaleOfFactorCheck(inspection, role).run();
  checkWeightScales(inspection, role);
}

} // namespace shardc::plan::verifier
