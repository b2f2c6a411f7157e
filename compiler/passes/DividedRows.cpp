// Finds the results whose rows are tokens that are divided over ranks. These include rows grouped
// by expert, up to the weighted sum over a token's experts: their capacity and counts refer to the
// rank's own rows.
#include "compiler/passes/Partition.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::passes {
namespace {

using plan::FactorId;
using plan::FactorValue;
using plan::kNoFactor;
using plan::OpFactors;

/// The factors of the first dimension of an operand or result.
std::vector<FactorId> firstOf(const FactorValue &value) {
  std::vector<FactorId> factors;
  for (const plan::FactorAtom &word : value.words())
    if (word.dim == 0)
      factors.push_back(word.factor);
  return factors;
}

} // namespace

bool hasRowsOf(const Op &op, const OpFactors &factors, size_t result,
               const std::function<bool(plan::ValueId)> &isDivided) {
  if (plan::opInfo(op).collective || op.kind == plan::OpKind::View)
    return isDivided(op.operands[0]);
  const std::vector<FactorId> rows = firstOf(plan::resultOf(op, factors, result));
  if (rows.empty())
    return false;
  if (factors.isBound(rows.front()) && rows.size() == 1)
    return true;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (isDivided(op.operands[i]) && firstOf(plan::operandOf(op, factors, i)) == rows)
      return true;
  return false;
}

void checkRows(const Op &op, const OpFactors &factors,
               const std::function<bool(plan::ValueId)> &isDivided) {
  if (plan::opInfo(op).takesOwnRows())
    return;
  for (size_t i = 0; i < op.operands.size(); ++i)
    for (const plan::FactorAtom &word : plan::operandOf(op, factors, i).words())
      SHARDC_CHECK(word.dim > 0 || !word.isNeededWhole || !isDivided(op.operands[i]),
                   "'{}' needs the rows of all ranks", plan::opInfo(op).name);
}

OwnLoads::OwnLoads(const plan::Segment &segment) : isRead_(segment.values.size()) {
  for (const Op &op : segment.ops)
    for (plan::ValueId operand : op.operands)
      isRead_[operand] = true;
}

void OwnLoads::take(Op &op, const std::function<plan::ValueId(plan::ValueId)> &sum) {
  if (op.kind == plan::OpKind::Tally && !isRead_[op.results[0]])
    return;
  for (plan::ValueId &operand : op.operands)
    if (auto load = sums_.find(operand); load != sums_.end()) {
      if (load->second == plan::kNone)
        load->second = sum(operand);
      operand = load->second;
    }
}

void divideBound(Op &op, const OpFactors &factors, int64_t ranks) {
  for (const FactorValue &result : factors.results())
    if (result.countsRowsOf != kNoFactor)
      if (auto bound = factors.attrOf[static_cast<size_t>(result.countsRowsOf)])
        op.set(*bound, op.getInt(*bound) / ranks);
}

} // namespace shardc::passes
