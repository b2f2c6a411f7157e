// Chooses how products run before a run on CUDA begins: rank 0 times what no earlier run has timed,
// and the others take its choices over.
#pragma once

#include "runtime/exec/Executable.h"
#ifdef SHARDC_HAS_CUDA
#include "runtime/backend/cuda/Options.h"

namespace shardc::tools {

/// Writes over arenas and workspaces, so nothing may be in them. `rendezvous` may be null where all
/// ranks are in this process. Choices are kept in the user's cache folder from run to run; what
/// cannot be read or written there is made anew.
Status tuneProducts(exec::Executable &executable, cuda::Rendezvous *rendezvous);

} // namespace shardc::tools
#endif
