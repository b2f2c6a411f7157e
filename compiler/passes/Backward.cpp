// Appends the backward ops of every training body, in reverse order, with one rule per op
// (BackwardRules.def). A parameter's gradient leaves the body through the cell `grad.<parameter>`.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/Passes.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::ValueId;

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

} // namespace

void runBackward(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.kind == plan::SegmentKind::Train) {
        Gradients gradients(plan, role, segment);
        gradients.write();
        exportGradients(plan, role, segment, gradients);
        plan::renumber(segment);
      }
}

} // namespace shardc::passes
