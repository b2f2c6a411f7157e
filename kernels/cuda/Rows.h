// Declares one constant per CUDA row of Kernels.def; its family's file defines it.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

#define CUDA_KERNEL(enumerator, op, family, dtypes) extern const Kernel k##enumerator;
#include "kernels/Kernels.def"

} // namespace shardc::kernels::cuda
