// Fuses a matmul and a bias_add that is its only user into one matmul with a bias operand.
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;

void fuseBias(plan::Segment &segment) {
  plan::Users users(segment);
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  auto typeOf = [&](plan::ValueId value) { return segment.values[value].type.dtype; };
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    Op &add = segment.ops[i];
    if (add.kind != OpKind::BiasAdd || users.count(add.operands[0]) != 1)
      continue;
    uint32_t def = segment.values[add.operands[0]].def;
    if (def == plan::kNone || segment.ops[def].kind != OpKind::MatMul ||
        segment.ops[def].operands.size() != 2 ||
        typeOf(add.results[0]) != typeOf(add.operands[0])) // the product has a type of its own
      continue;
    Op &product = segment.ops[def];
    // The product moves to the position of the sum, where the bias is defined.
    Op fused = product;
    fused.operands.push_back(add.operands[1]);
    fused.results = add.results;
    add = std::move(fused);
    dead[def] = 1;
  }
  plan::eraseOps(segment, dead);
}

} // namespace

void runFuseBias(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      fuseBias(segment);
}

} // namespace shardc::passes
