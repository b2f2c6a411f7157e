// Times matrix products before a run on CUDA begins. The ranks divide the products that no earlier
// run has timed, and exchange their choices.
#pragma once

#include "kernels/cuda/Context.h"
#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::tools {

/// Overwrites arenas and workspaces, which must not contain anything yet. `kernels` is the context
/// of the executable's calls. `peers` may be null if all ranks are in this process. Choices are
/// kept in the user's cache folder between runs; a choice that cannot be read or written there is
/// made again.
Status tuneProducts(exec::Executable &executable, kernels::cuda::Context &kernels,
                    hal::Peers *peers);

} // namespace shardc::tools
