// What the kernels of optimizers have in common.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or why the call is none of an optimizer with so many operands between master and state,
/// all updated in place.
const char *checkOptimizer(const Call &call, int moments);

} // namespace shardc::kernels::host
