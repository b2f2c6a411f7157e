// A kernel call without addresses: types, shapes, attributes.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// A tensor of the type, without an address.
kernels::Tensor tensorOf(const plan::Type &type);

/// The op's attributes. Attributes that the op does not set have their defaults.
kernels::Attrs attrsOf(const plan::Op &op);

/// The op's call without addresses, as input of workspaceBytes. If the op takes a list, or has more
/// operands or results than a call can hold, the call has none. If the call depends on the rank's
/// index in a group, it is that of the first rank.
kernels::Call shapeOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

} // namespace shardc::exec
