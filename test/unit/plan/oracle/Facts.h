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
  Shard,
  OfShard,
  Sgd,
  AdamW,
  StepReset,
  StepBegin,
  StepPack,
  StepFinish
};

/// What the op does with the step state.
enum class StepPart : uint8_t { None, Begins, AddsLosses, Evaluates, Finishes };

/// Whose elements the op's results have, if they are weights.
enum class WeightSource : uint8_t { None, OwnPart, Updated, Operand, Members, View };

struct Facts {
  Sizes sizes = Sizes::Free;
  bool movesPadding = false; ///< accepts padding: moves it, or uses only elements of parameters
  bool keepsBlock = false;   ///< the first result holds the operand's block
  bool isOfStep = false;     ///< one of the ops that each step executes once
  StepPart step = StepPart::None;
  bool hasOwnPart = false; ///< computes the part that belongs to its index in a group
  WeightSource weights = WeightSource::None;
  int8_t experts = 0; ///< 0, or number of operands of an expert product without delayed scaling
  bool seesAmaxes = false;   ///< the op adds to amaxes in place, which no other result depends on
  int8_t scale = -1;         ///< index of the result that is the scale of the 8-bit results
  int8_t otherScale = -1;    ///< index of the scale of the result before it
  bool scalesFollow = false; ///< each 8-bit result is followed by its own scale
};
/// Facts of an op without an epilogue.
Facts factsOf(OpKind kind);
Facts factsOf(const Op &op);

} // namespace shardc::plan::oracle
