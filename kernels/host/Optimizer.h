// Checks that all kernels of optimizers share.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the call is not valid for an optimizer that has `moments` operands
/// between master and state, all updated in place.
const char *checkOptimizer(const Call &call, int moments);

} // namespace shardc::kernels::host
