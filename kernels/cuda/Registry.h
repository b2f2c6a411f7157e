// Finds the CUDA kernel of an op, mirroring the host's registry. The rows are in
// kernels/Kernels.def.
#pragma once

#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels {

/// The CUDA kernel of the op with this name in Ops.def, or null: alias ops and collectives have
/// none.
const Kernel *findCudaKernel(std::string_view opName);

/// Whether kernels from libraries may add in an order that changes from run to run; hand-written
/// ones never do. Set before plans are bound; deterministic unless set.
void setCudaDeterministic(bool deterministic);
bool isCudaDeterministic();

/// Whether products and attention are hand-written kernels too: SHARDC_OWN_KERNELS=1, for tools
/// that look into kernels and fail in those of libraries. Slow.
bool takesOwnKernels();

} // namespace shardc::kernels
