// Times matrix products before a run on CUDA begins: the ranks share the products that no earlier
// run has timed, and exchange their choices.
#pragma once

#include "kernels/cuda/Context.h"
#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::tools {

/// Writes over arenas and workspaces, so nothing may be in them. `peers` may be null where all
/// ranks are in this process. Choices are kept in the user's cache folder from run to run; what
/// cannot be read or written there is made anew.
/// `kernels` is the context of the executable's calls.
Status tuneProducts(exec::Executable &executable, kernels::cuda::Context &kernels,
                    hal::Peers *peers);

} // namespace shardc::tools
