// What the oracle knows about each op. This repeats columns of runtime/plan/Ops.def on purpose: the
// oracle is a second opinion on the table too.
#pragma once

#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// How the sizes of an op's operands and results depend on each other.
enum class Sizes : uint8_t {
  Free, ///< not known, so no mutation may change them
  Any,
  Equal,
  Product,
  Columns,
  Part,
  Block,
  Gathered,
  Scattered,
  Reduced,
  Exchanged,
  Squares,
  Sgd,
  AdamW,
  StepReset,
  StepBegin,
  StepPack,
  StepFinish
};

struct Facts {
  Sizes sizes = Sizes::Free;
  bool isOfStep = false;   ///< one of the ops that each step executes once
  bool hasOwnPart = false; ///< computes the part that belongs to its index in a group
  int8_t experts = 0; ///< 0, or number of operands of an expert product without delayed scaling
};
/// Facts of an op without operands.
Facts factsOf(OpKind kind);
Facts factsOf(const Op &op);

} // namespace shardc::plan::oracle
