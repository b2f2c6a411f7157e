// Finds the CUDA kernel of an op, mirroring the host's registry. The rows are in
// kernels/Kernels.def.
#pragma once

#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels {

/// The CUDA kernel of the op with this name in Ops.def, or null: alias ops and collectives have
/// none.
const Kernel *findCudaKernel(std::string_view opName);

/// Whether kernels of libraries may be nondeterministic in the order of additions; hand-written
/// kernels are always deterministic. Set it before plans are bound. The default is deterministic.
void setCudaDeterministic(bool deterministic);
bool isCudaDeterministic();

/// Whether hand-written kernels also compute products and attention: SHARDC_OWN_KERNELS=1, for
/// tools that instrument kernels and fail in those of libraries. Slow.
bool takesOwnKernels();

} // namespace shardc::kernels
