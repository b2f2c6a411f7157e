#include "runtime/plan/Factors.h"

namespace shardc::plan {

int64_t FactorAtom::extent(int64_t ofFactor, int64_t ofOther) const {
  switch (form) {
  case Plain:
    return ofFactor;
  case Number:
    return number;
  case Beside:
    return ofFactor + number;
  case Blocks:
    return (ofFactor + number - 1) / number;
  case Mirrored:
    return 2 * ofFactor;
  case Joined:
    return ofFactor + ofOther;
  }
  return ofFactor;
}

bool OpFactors::isNeededWhole(FactorId factor) const {
  auto keepsWhole = [&](const FactorValue &value) {
    const FactorAtom *atom = value.find(factor);
    return atom != nullptr && (atom->isNeededWhole || atom->form == FactorAtom::Beside ||
                               atom->form == FactorAtom::Joined);
  };
  return std::ranges::any_of(operands(), keepsWhole) || std::ranges::any_of(results(), keepsWhole);
}

std::optional<size_t> OpFactors::chosenBy() const {
  for (const FactorValue &result : results())
    for (size_t i = 0; i < operandCount; ++i)
      if (operandValues[i].has(result.pointsInto))
        return i;
  return std::nullopt;
}

bool OpFactors::isSummed(FactorId factor, size_t result) const {
  return resultValues[result].form == FactorValue::Dims &&
         resultValues[result].combine == FactorValue::Sum && !resultValues[result].has(factor) &&
         !isNeededWhole(factor);
}

bool OpFactors::isBound(FactorId factor) const {
  auto bounds = [&](const FactorValue &value) {
    const FactorAtom *atom = value.find(factor);
    return atom != nullptr && atom->isBound;
  };
  return std::ranges::any_of(operands(), bounds) || std::ranges::any_of(results(), bounds);
}

std::optional<size_t> OpFactors::boundBy(FactorId factor) const {
  for (size_t i = 0; i < operandCount; ++i)
    if (operandValues[i].countsRowsOf == factor || operandValues[i].pointsInto == factor)
      return i;
  return std::nullopt;
}

std::optional<size_t> OpFactors::leavesOutBy() const {
  for (size_t i = 0; i < operandCount; ++i)
    if (FactorId rows = operandValues[i].countsRowsOf; rows != kNoFactor && !isBound(rows))
      return i;
  return std::nullopt;
}

bool isLayerProduct(OpKind kind) {
  const OpFactors &factors = factorsOf(kind);
  return factors.isTransposed(0, AttrKey::trans_a) && factors.isTransposed(1, AttrKey::trans_b);
}

std::optional<size_t> leavesOutBy(const Op &op) {
  std::optional<size_t> by = factorsOf(op).leavesOutBy();
  return by && *by < op.operands.size() ? by : std::nullopt;
}

} // namespace shardc::plan
