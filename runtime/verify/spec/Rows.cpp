// Parses the rows of Spec.def, once.
#include "runtime/verify/spec/Rows.h"

#include <algorithm>
#include <iterator>

namespace shardc::plan::spec {
namespace {

/// A bit for each of the op's operands with one of these names.
consteval uint32_t operandBits(OpKind kind, std::string_view names) {
  uint32_t bits = 0;
  while (!names.empty())
    bits |= 1u << positionOf(names::kOperands[static_cast<size_t>(kind)], takeUntil(names, ' '));
  return bits;
}

} // namespace

Linearity linearity(OpKind kind, size_t operand) {
  auto has = [&](uint32_t bits) { return operand < 32 && (bits >> operand & 1u) != 0; };
#define LINEAR(op, how, operands)                                                                  \
  if (kind == OpKind::op && has(operandBits(OpKind::op, operands)))                                \
    return Linearity::how;
#include "runtime/verify/spec/Spec.def"
  return Linearity::None;
}

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
