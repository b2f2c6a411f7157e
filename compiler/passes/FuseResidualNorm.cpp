// Fuses an add and a norm of the sum into one op that writes the sum and its norm. The sum keeps
// its other users; all of them come after the norm, because the fused op takes the norm's position.
#include <optional>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;

/// The op that adds two operands and applies this norm to the sum; empty if there is none.
std::optional<OpKind> fusedWithSum(OpKind norm) {
  for (int kind = 0; kind < plan::kOpCount; ++kind)
    if (plan::kOpInfos[static_cast<size_t>(kind)].norm == norm)
      return static_cast<OpKind>(kind);
  return std::nullopt;
}

void fuseResidualNorm(plan::Segment &segment) {
  plan::Users users(segment);
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    Op &norm = segment.ops[i];
    std::optional<OpKind> fused = fusedWithSum(norm.kind);
    if (!fused || norm.epilogue != plan::Epilogue::None)
      continue;
    plan::ValueId sum =
        norm.operands[static_cast<size_t>(plan::positionOf(plan::opInfo(norm).operands, "x"))];
    uint32_t def = segment.values[sum].def;
    // The first user of the sum must be this norm, otherwise a user would precede its definition.
    if (def == plan::kNone || segment.ops[def].kind != OpKind::Add || dead[def] ||
        *users.begin(sum) != i)
      continue;
    const Op &add = segment.ops[def];
    norm.kind = *fused;
    // The two terms replace x as operands; the sum becomes a result.
    norm.operands.front() = plan::operandNamed<OpKind::Add>(add, "b");
    norm.operands.insert(norm.operands.begin(), plan::operandNamed<OpKind::Add>(add, "a"));
    norm.results.insert(norm.results.begin(), sum);
    dead[def] = 1;
  }
  plan::eraseOps(segment, dead);
}

} // namespace

void runFuseResidualNorm(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      fuseResidualNorm(segment);
}

} // namespace shardc::passes
