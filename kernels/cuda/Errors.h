// Kernels return nothing; what a library refuses while one is launched is kept here, by thread,
// until the backend asks for it after each launch.
#pragma once

#include <string>

namespace shardc::kernels::cuda {

/// Keeps `text` unless something is kept already: the first error is the cause of the others.
void reportError(std::string text);

/// What was kept in this thread, and forgets it; empty if nothing went wrong.
std::string takeError();

} // namespace shardc::kernels::cuda
