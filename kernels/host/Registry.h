// Finds the host kernel of an op. The host kernels are the oracle: plain, deterministic, one thread
// per call; every other backend is tested against them. The rows are in kernels/Kernels.def.
#pragma once

#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels {

/// The host kernel of the op with this name in Ops.def, or null: alias ops and collectives have
/// none. The first call initialises BLIS. Threads may call this function, and
/// kernels, concurrently.
const Kernel *findHostKernel(std::string_view opName);

} // namespace shardc::kernels
