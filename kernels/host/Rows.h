// Declares one constant per host row of Kernels.def; its family's file defines it.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

#define SHARDC_ROW_Host(enumerator) extern const Kernel k##enumerator;
#define KERNEL(enumerator, op, backend, family, dtypes) SHARDC_ROW_##backend(enumerator)
#include "kernels/Kernels.def"

} // namespace shardc::kernels::host
