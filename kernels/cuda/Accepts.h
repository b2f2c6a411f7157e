// A CUDA kernel accepts exactly the calls that the host kernel of its op accepts, by the same
// checks.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::cuda {

/// Returns null, or the reason why the host kernel refuses this call.
template <const Kernel *kOracle> const char *acceptsAs(const Call &call) {
  return kOracle->accepts(call);
}

using host::Scratch;
using host::workspaceOf;

} // namespace shardc::kernels::cuda
