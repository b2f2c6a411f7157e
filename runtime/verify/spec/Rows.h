// The tables of Spec.def in parsed form.
#pragma once

#include <span>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::spec {

/// The attributes that are part of the op's value.
std::vector<Attr> meantAttrs(OpKind kind, std::span<const Attr> attrs);
/// The index of the operand that the op does not use with these attributes (rows UNUSED); -1 if it
/// uses all of them.
int unusedOperand(OpKind kind, std::span<const Attr> attrs);

} // namespace shardc::plan::spec
