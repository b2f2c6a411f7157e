// Errors of kernel launches. Kernels return nothing, so an error of a library is kept here, per
// thread, until the backend asks for it after each launch.
#pragma once

#include <string>

namespace shardc::kernels::cuda {

/// Keeps `text` unless an error is already kept: the first error is the cause of the others.
void reportError(std::string text);

/// Returns and clears this thread's error; empty if there is none.
std::string takeError();

} // namespace shardc::kernels::cuda
