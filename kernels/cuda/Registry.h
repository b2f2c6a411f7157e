// Finds the CUDA kernel of an op, like the host's registry. The table is kernels/Kernels.def.
#pragma once

#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels {

/// Returns the CUDA kernel of the op with this name in Ops.def. Returns null for alias ops and
/// collectives, which have none.
const Kernel *findCudaKernel(std::string_view opName);

} // namespace shardc::kernels
