// Declares one constant per host row of Kernels.def, which its family's file defines, and one per
// op that the host runs by its steps (Steps.cpp).
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

#define HOST_KERNEL(enumerator, op, family, dtypes) extern const Kernel k##enumerator;
#include "kernels/Kernels.def"
#define FUSED(op, ...) extern const Kernel k##op;
#include "runtime/plan/Ops.def"

} // namespace shardc::kernels::host
