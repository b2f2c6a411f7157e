// What a call of a kernel says before it has addresses: types, shapes, attributes.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// A tensor of the type, without an address.
kernels::Tensor tensorOf(const plan::Type &type);

/// The op's attributes, the others at their defaults.
kernels::Attrs attrsOf(const plan::Op &op);

/// The op's call without addresses, as workspaceBytes takes it. Ops that take a list, and those
/// whose operands or results are more than a call has room for, give a call without them.
kernels::Call shapeOf(const plan::Segment &segment, const plan::Op &op);

} // namespace shardc::exec
