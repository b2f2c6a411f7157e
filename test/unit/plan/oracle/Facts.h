// What the oracle knows of each op: stated a second time, since the oracle is a second opinion on
// the columns of runtime/plan/Ops.def too.
#pragma once

#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// What fixes the sizes of operands and results.
enum class Sizes : uint8_t {
  Free, ///< not looked at, so that no mutation may change them
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

/// What becomes of the step state that it takes.
enum class StepPart : uint8_t { None, Begins, AddsLosses, Evaluates, Finishes };

/// Which weights its results are elements of.
enum class WeightSource : uint8_t { None, OwnPart, Updated, Operand, Members, View };

struct Facts {
  Sizes sizes = Sizes::Free;
  bool movesPadding = false; ///< does not look at padding: moves it, or keeps to parameters
  bool keepsBlock = false;   ///< the first result holds the operand's block
  bool isOfStep = false;     ///< one of the ops that each step does once
  StepPart step = StepPart::None;
  bool hasOwnPart = false; ///< computes what its rank has by its index in the group
  WeightSource weights = WeightSource::None;
  int8_t experts = 0; ///< more than 0: operands of a product of experts without delayed scaling
  bool seesAmaxes = false;   ///< what it takes in place reaches no other result
  int8_t scale = -1;         ///< of its results of 8 bits, a result too
  int8_t otherScale = -1;    ///< of the result before it, which has that one instead
  bool scalesFollow = false; ///< each of these results has its own scale behind it
};
/// Of an op without an epilogue.
Facts factsOf(OpKind kind);
Facts factsOf(const Op &op);

} // namespace shardc::plan::oracle
