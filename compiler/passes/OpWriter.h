// The base of classes that write the ops of a segment anew, from the first to the last.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/passes/PlanNames.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

class OpWriter {
protected:
  explicit OpWriter(plan::Segment &segment) : segment_(segment) {}

  /// Calls `write` with each op of the segment. What it appends to ops_ takes their place.
  template <typename Write> void rewrite(Write write) {
    std::vector<Op> old = std::move(segment_.ops);
    for (Op &op : old) {
      unit_ = op.unit, loc_ = op.loc;
      write(std::move(op));
    }
    plan::replaceOps(segment_, std::exchange(ops_, {}));
  }

  const Type &typeOf(ValueId value) const { return segment_.values[value].type; }
  const std::string &nameOf(ValueId value) const { return segment_.values[value].name; }
  plan::Purpose purposeOf(ValueId value) const { return segment_.values[value].purpose; }

  /// An op beside the one that is written: of the same unit and recipe line.
  Op make(OpKind kind, std::initializer_list<ValueId> operands, int16_t group = -1) const {
    Op op = plan::makeOp(kind, operands, unit_, loc_);
    op.group = group, op.phase = plan::segmentKindInfo(segment_.kind).phase;
    return op;
  }
  /// Appends an op with one result, which is new.
  ValueId emit(Op op, std::string name, const Type &type,
               plan::Purpose purpose = plan::Purpose::Activations) {
    return emitTo(plan::addValue(segment_, std::move(name), type, purpose), std::move(op));
  }
  /// Appends an op that has this result. Returns it.
  ValueId emitTo(ValueId result, Op op) {
    op.results = {result};
    ops_.push_back(std::move(op));
    return result;
  }
  /// A view of a whole value for ops that compute only a part of its gradient.
  ValueId emitShared(ValueId value, int16_t group, plan::Purpose purpose) {
    Op view = make(OpKind::View, {value}, group);
    view.set(Key::shared, int64_t{1});
    return emit(std::move(view), nameOf(value) + ".shared", typeOf(value), purpose);
  }

  plan::Segment &segment_;
  std::vector<Op> ops_;
  int32_t unit_ = -1; ///< of the op that is written
  uint32_t loc_ = kNone;
};

} // namespace shardc::passes
