// Appends the backward ops of every training body, in reverse order, with one rule per op
// (BackwardRules.def). A parameter's gradient leaves the body through the cell `grad.<parameter>`.
#include <algorithm>

#include "compiler/passes/Gradients.h"
#include "compiler/passes/PassInputs.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {
namespace {

void exportGradients(const plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     const Gradients &gradients) {
  std::vector<ValueId> weights(plan.params.size(), kNone);
  for (const plan::Segment::Boundary &in : segment.ins)
    if (const plan::Cell &cell = role.cells[in.cell]; cell.kind == plan::CellKind::Param)
      weights[static_cast<size_t>(cell.of)] = in.value;
  for (size_t param = 0; param < plan.params.size(); ++param) {
    ValueId gradient = weights[param] == kNone ? kNone : gradients.of(weights[param]);
    if (gradient == kNone)
      continue;
    uint32_t cell = plan::addCell(
        role, "grad." + plan.params[param].name, {plan::CellKind::ParamGradient, param},
        segment.values[gradient].type, plan::Arena::Work, plan::Purpose::Grads);
    segment.outs.push_back({gradient, cell});
  }
}

/// Removes the views that mark values as shared by a group. They are needed only to find the
/// gradients that are partial sums.
void dropSharedViews(plan::Segment &segment) {
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  std::vector<ValueId> operandOf(segment.values.size(), kNone);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    plan::Op &op = segment.ops[i];
    for (ValueId &operand : op.operands)
      if (operandOf[operand] != kNone)
        operand = operandOf[operand];
    if (op.kind == plan::OpKind::View && op.getBool(plan::AttrKey::shared)) {
      operandOf[op.results[0]] = op.operands[0];
      dead[i] = 1;
    }
  }
  if (std::ranges::find(dead, 1) != dead.end())
    plan::eraseOps(segment, dead);
}

} // namespace

std::optional<std::string> findNeededByBackward(const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      if (segment.kind == plan::SegmentKind::Train)
        for (const plan::Op &op : segment.ops)
          if (!Gradients::hasRule(op))
            return fmt::format("forward ops that have gradients; segment '{}' has '{}'",
                               segment.name, plan::opInfo(op).name);
  return std::nullopt;
}

void runBackward(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments) {
      if (segment.kind == plan::SegmentKind::Train) {
        Gradients gradients(plan, role, segment);
        gradients.write();
        exportGradients(plan, role, segment, gradients);
        plan::renumber(segment);
      }
      dropSharedViews(segment);
    }
}

} // namespace shardc::passes
