// Finds the steps of fused ops (runtime/plan/Ops.def) in a segment, and puts the fused op in
// their place.
#pragma once

#include <vector>

#include "runtime/plan/Builder.h"
#include "runtime/plan/Steps.h"

namespace shardc::passes {

/// Ops of a segment that are the steps of a fused op, and the op that will replace them.
struct Match {
  const plan::Plan &plan;
  const plan::Segment &segment;
  const plan::Users &users;          ///< before any change
  std::vector<uint32_t> ops;         ///< by step of the row; kNone: a cast to a value's stored type
  std::vector<plan::ValueId> values; ///< by value number; kNone if the op lacks it
  plan::Op fused;

  const plan::Op &op(size_t step) const { return segment.ops[ops[step]]; }
  const plan::Type &typeOf(plan::ValueId value) const { return segment.values[value].type; }
  bool isOut(plan::ValueId value) const;
};

/// How a pass fuses an op.
struct Fusion {
  plan::OpKind fused;
  /// The step whose unit, line and phase the fused op takes, and the step at whose place it stands;
  /// numbers without such casts.
  size_t base, at;
  /// Whether the first step stays for its other readers.
  bool keepsFirst = false;
  /// Says whether a match may be fused, and may complete the fused op; null: always.
  bool (*mayFuse)(Match &match) = nullptr;
};

/// Fuses all matches, in the order of the ops at whose place the fused op stands. Values between
/// the steps have no other readers, and steps have no ties. An attribute that the fused op lacks
/// must have its default, or the value that the row sets.
void fuse(const plan::Plan &plan, plan::Segment &segment, const Fusion &fusion);

} // namespace shardc::passes
