// Declares one constant per CUDA row of Kernels.def; its family's file defines it.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

#define SHARDC_ROW_Cuda(enumerator) extern const Kernel k##enumerator;
#define KERNEL(enumerator, op, backend, family, dtypes) SHARDC_ROW_##backend(enumerator)
#include "kernels/Kernels.def"

} // namespace shardc::kernels::cuda
