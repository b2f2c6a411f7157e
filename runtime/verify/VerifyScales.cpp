// Checks loss scales. If steps end by dividing gradients by the step state's scale, each op that
// starts a gradient must multiply by that scale, and no other op may. All ranks must change the
// scale by the same rules.
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// The operand with the loss scale of an op that starts gradients; -1 for other ops.
int scaleOperandOf(OpKind kind) {
  const OpInfo &info = opInfo(kind);
  return info.startsGradient ? positionOf(info.operands, "state") : -1;
}

class ScaleCheck {
public:
  explicit ScaleCheck(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {}

  void run() {
    forEachOp(plan_, [&](Spot at, const Segment &, const Op &op) {
      if (op.kind == OpKind::StepFinish)
        compare(at, op);
    });
    if (!finish_)
      return;
    bool isScaled = finish_->getInt(AttrKey::scaling) != 0;
    forEachOp(plan_, [&](Spot at, const Segment &segment, const Op &op) {
      if (int operand = scaleOperandOf(op.kind); operand >= 0)
        checkStart(at, segment, op, static_cast<size_t>(operand), isScaled);
    });
  }

private:
  /// Checks that all steps change the scale by the same rule.
  void compare(Spot at, const Op &op) {
    if (!finish_)
      finish_ = &op;
    for (AttrKey key : {AttrKey::scaling, AttrKey::growth_interval, AttrKey::hysteresis})
      if (op.getInt(key) != finish_->getInt(key))
        return differs(at);
    if (op.getFloat(AttrKey::min_scale) != finish_->getFloat(AttrKey::min_scale))
      differs(at);
  }
  void differs(Spot at) { report_.add(finding::LossScaleRules, at); }

  void checkStart(Spot at, const Segment &segment, const Op &op, size_t operand, bool isScaled) {
    if ((op.operands.size() > operand) != isScaled)
      report_.add(finding::StepOp, at,
                  isScaled ? "takes no loss scale, by which 'step.finish' divides"
                           : "takes a loss scale, and 'step.finish' does not divide by it");
    else if (isScaled && !isStepState(at, segment, op.operands[operand]))
      report_.add(finding::StepOp, at,
                  "takes its loss scale from a value that is not the step state");
  }

  bool isStepState(Spot at, const Segment &segment, ValueId value) const {
    const Op *producer = producerOf(segment, value);
    const Cell *cell = cellOf(plan_.roles[at.role], segment, value);
    return producer != nullptr
               ? producer->kind == OpKind::StepBegin || producer->kind == OpKind::LossAdd
               : cell != nullptr && cell->kind == CellKind::Step;
  }

  Inspection &report_;
  const Plan &plan_;
  const Op *finish_ = nullptr; ///< the first one
};

} // namespace

void checkScales(Inspection &inspection) { ScaleCheck(inspection).run(); }

} // namespace shardc::plan::verifier
