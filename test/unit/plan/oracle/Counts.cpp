#include "Counts.h"

#include <cstdint>

namespace shardc::plan::oracle {
namespace {

/// Number of leading operands whose rows are counted by the third operand.
size_t rowsOf(OpKind kind) {
  bool isProduct = kind == OpKind::GroupedMatMul || kind == OpKind::GroupedMatMulScaled ||
                   kind == OpKind::GroupedMatMulBias || kind == OpKind::GroupedBias;
  bool isGradient = kind == OpKind::GroupedMatMulBwd || kind == OpKind::GroupedMatMulBwdSquares;
  return isGradient ? 2 : isProduct ? 1 : 0;
}

/// The operand that counts the rows of the first operand; SIZE_MAX if the op has none.
size_t countsOf(OpKind kind) {
  bool isBackward = kind == OpKind::WeightedSwiGluBwd || kind == OpKind::WeightedQuickGeGluBwd;
  bool isUnit = kind == OpKind::WeightedSwiGlu || kind == OpKind::WeightedQuickGeGlu;
  return kind == OpKind::AllToAll ? 1 : isUnit ? 2 : isBackward ? 3 : SIZE_MAX;
}

std::string findBreak(const Segment &segment, const Op &op) {
  auto value = [&](ValueId id) -> const Value & { return segment.values[id]; };
  if (op.kind == OpKind::AllReduce && value(op.operands[0]).counts != kNone)
    return value(op.operands[0]).name + " is summed with rows that are not there";
  for (size_t k = 0; k < rowsOf(op.kind); ++k)
    if (value(op.operands[k]).counts != op.operands[2])
      return value(op.operands[k]).name + " has other rows than are counted";
  if (size_t by = countsOf(op.kind);
      by < op.operands.size() && value(op.operands[0]).counts != op.operands[by])
    return value(op.operands[0]).name + " loses rows by the counts of others";
  if (op.kind != OpKind::Dispatch && op.kind != OpKind::Combine)
    return {};
  ValueId places = op.operands[1];
  while (value(places).def != kNone && segment.ops[value(places).def].kind == OpKind::View)
    places = segment.ops[value(places).def].operands[0];
  uint32_t def = value(places).def;
  bool isMade =
      def == kNone || (segment.ops[def].kind == OpKind::MakeRuns && value(places).defResult == 1);
  return isMade ? std::string() : value(places).name + " has no places of rows";
}

} // namespace

std::string findCountBreak(const Plan &plan) {
  for (const Role &role : plan.roles)
    for (const Segment &segment : role.segments)
      for (const Op &op : segment.ops)
        if (std::string problem = findBreak(segment, op); !problem.empty())
          return problem;
  return {};
}

} // namespace shardc::plan::oracle
