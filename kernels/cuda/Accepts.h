// A CUDA kernel takes what the host kernel of its op takes: the conditions are stated once, there.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::cuda {

/// Null, or why the host kernel does not take this call.
template <const Kernel *kOracle> const char *acceptsAs(const Call &call) {
  return kOracle->accepts(call);
}

using host::Scratch;
using host::workspaceOf;

} // namespace shardc::kernels::cuda
