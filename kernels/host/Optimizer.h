// Checks that all kernels of optimizers share.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the call is invalid for an optimizer with `moments` operands between
/// master weights and state. All of these are updated in place.
const char *checkOptimizer(const Call &call, int moments);

} // namespace shardc::kernels::host
