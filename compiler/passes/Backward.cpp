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
  for (size_t param = 0; param < plan.params.size(); ++param) {
    auto of = static_cast<int32_t>(param);
    ValueId weight = plan::liveInOf(segment, plan::findCell(role, plan::CellKind::Param, of));
    ValueId gradient = weight == kNone ? kNone : gradients.of(weight);
    if (gradient == kNone)
      continue;
    plan::Cell cell;
    cell.name = "grad." + plan.params[param].name;
    cell.kind = plan::CellKind::ParamGradient;
    cell.of = of;
    cell.type = segment.values[gradient].type;
    cell.arena = plan::Arena::Work;
    cell.purpose = plan::Purpose::Grads;
    role.cells.push_back(std::move(cell));
    segment.outs.push_back({gradient, static_cast<uint32_t>(role.cells.size()) - 1});
  }
}

} // namespace

void runBackward(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.kind == plan::SegmentKind::Train) {
        Gradients gradients(role, segment);
        gradients.write();
        exportGradients(plan, role, segment, gradients);
        plan::renumber(segment);
      }
}

} // namespace shardc::passes
