// Finds the host kernel of an op. The host kernels are the oracle for all other backends: plain and
// deterministic, with one thread per call. kernels/Kernels.def lists them.
#pragma once

#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels {

/// Returns the host kernel of the op with this name in Ops.def. If the host has no
/// kernel of its own for it, this one runs the op's steps. Returns null for alias ops and
/// collectives, which have none. The first call initialises BLIS. Threads may call this function,
/// and kernels, concurrently.
const Kernel *findHostKernel(std::string_view opName);

} // namespace shardc::kernels
