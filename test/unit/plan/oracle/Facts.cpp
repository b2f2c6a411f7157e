#include "Facts.h"

namespace shardc::plan::oracle {

Facts factsOf(OpKind kind) {
  switch (kind) {
#define ROW(op, ...)                                                                               \
  case OpKind::op:                                                                                 \
    return {__VA_ARGS__};
#include "Facts.def"
  }
  return {};
}

/// Ops that quantize return the scale after the numbers. Ops that make gradients quantize a second
/// value too: its numbers, followed by their scale, are the last results.
Facts factsOf(const Op &op) {
  if (op.epilogue == Epilogue::None) {
    Facts facts = factsOf(op.kind);
    if (facts.experts && op.operands.size() > static_cast<size_t>(facts.experts))
      facts.hasOwnPart = facts.seesAmaxes = true; // the op reads the amaxes of all members' rows
    return facts;
  }
  Facts facts;
  bool makesTwo = op.kind == OpKind::SwiGluBwd || op.kind == OpKind::GeGluBwd;
  if (op.epilogue == Epilogue::Amax)
    return facts;
  if (makesTwo && op.epilogue == Epilogue::QuantizeBlocks) {
    facts.scalesFollow = true;
    return facts;
  }
  facts.scale = 1;
  facts.seesAmaxes = true;
  if (makesTwo)
    facts.otherScale = op.epilogue == Epilogue::QuantizeDelayed ? 5 : 4;
  return facts;
}

} // namespace shardc::plan::oracle
