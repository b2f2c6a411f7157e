// Parses the rows of Spec.def, once.
#include "runtime/verify/spec/Rows.h"

#include <algorithm>
#include <iterator>

namespace shardc::plan::spec {
int unusedOperand(OpKind kind, std::span<const Attr> attrs) {
  for (const Attr &attr : attrs)
#define UNUSED(op, operand, attribute)                                                             \
  if (kind == OpKind::op && attr.key == AttrKey::attribute && attr.i != 0)                         \
    return static_cast<int>(operandIndex<OpKind::op>(#operand));
#include "runtime/verify/spec/Spec.def"
    return -1;
}

std::vector<Attr> meantAttrs(OpKind kind, std::span<const Attr> attrs) {
  std::vector<Attr> meant;
  std::ranges::copy_if(attrs, std::back_inserter(meant),
                       [&](const Attr &attr) { return !opInfo(kind).unmeant.has(attr.key); });
  return meant;
}

} // namespace shardc::plan::spec
