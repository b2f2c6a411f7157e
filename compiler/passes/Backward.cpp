// Appends the backward ops of every training body, in reverse order, with one rule per op
// (BackwardRules.def). A parameter's gradient leaves the body through the cell `grad.<parameter>`.
#include <algorithm>

#include "compiler/passes/Gradients.h"
#include "compiler/passes/Passes.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

void exportGradients(const plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     const Gradients &gradients) {
  for (uint32_t param = 0; param < plan.params.size(); ++param) {
    ValueId weight = plan::liveInOf(segment, param);
    ValueId gradient = weight == kNone ? kNone : gradients.of(weight);
    if (gradient == kNone)
      continue;
    plan::Cell cell;
    cell.name = "grad." + plan.params[param].name;
    cell.type = segment.values[gradient].type;
    cell.arena = plan::Arena::Work;
    cell.purpose = plan::Purpose::Grads;
    role.cells.push_back(std::move(cell));
    segment.outs.push_back({gradient, static_cast<uint32_t>(role.cells.size()) - 1});
  }
}

bool isTraining(const plan::Segment &segment) {
  return std::any_of(segment.ops.begin(), segment.ops.end(),
                     [](const Op &op) { return op.kind == OpKind::LossAdd; });
}

} // namespace

void runBackward(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body && isTraining(segment)) {
        Gradients gradients(plan, segment);
        gradients.write();
        exportGradients(plan, role, segment, gradients);
        plan::renumber(segment);
      }
}

} // namespace shardc::passes
