// Times matrix products before a run on CUDA begins: the ranks share the products that no earlier
// run has timed, and exchange their choices.
#pragma once

#include "kernels/cuda/Context.h"
#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::tools {

/// Overwrites arenas and workspaces, so these must not hold anything yet. `peers` may be null if
/// all ranks are in this process. Choices are kept in the user's cache folder from run to run; if a
/// choice cannot be read or written there, it is made anew. `kernels` is the context of the
/// executable's calls.
Status tuneProducts(exec::Executable &executable, kernels::cuda::Context &kernels,
                    hal::Peers *peers);

} // namespace shardc::tools
