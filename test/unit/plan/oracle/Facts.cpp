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

Facts factsOf(const Op &op) {
  Facts facts = factsOf(op.kind);
  if (facts.experts && op.operands.size() > static_cast<size_t>(facts.experts))
    facts.hasOwnPart = true; // the op reads the amaxes of all members' rows
  return facts;
}

} // namespace shardc::plan::oracle
