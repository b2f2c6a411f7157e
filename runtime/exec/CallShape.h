// A kernel call without addresses: types, shapes, attributes.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// A tensor of the type, without an address.
kernels::Tensor tensorOf(const plan::Type &type);

/// The op's attributes, the others at their defaults.
kernels::Attrs attrsOf(const plan::Op &op);

/// The op's call without addresses, as input of workspaceBytes. For ops that take a list, and those
/// with more operands or results than a call has room for, the call has none.
/// Where it depends on the rank's index in a group, it is that of the first rank.
kernels::Call shapeOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

} // namespace shardc::exec
