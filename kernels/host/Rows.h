// Declares one constant per host row of Kernels.def, which its family's file defines, and one per
// op that the host runs by its steps (Steps.cpp).
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

#define SHARDC_ROW_Host(enumerator) extern const Kernel k##enumerator;
#define KERNEL(enumerator, op, backend, family, dtypes) SHARDC_ROW_##backend(enumerator)
#include "kernels/Kernels.def"
#define FUSED(op, values, steps) extern const Kernel k##op;
#define FORM(op, epilogue, steps) extern const Kernel k##op##epilogue;
#include "runtime/plan/Steps.def"

} // namespace shardc::kernels::host
