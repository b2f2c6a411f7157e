// Prints how a backend executes a plan: each op with its kernel and the bytes that it accesses.
#pragma once

#include <string>

#include "runtime/exec/Bind.h"

namespace shardc::exec {

/// Prints a page: needs, memory by arena, then the ops of each segment, one per line. Ops without a
/// kernel are marked.
std::string explain(const plan::Plan &plan, FindKernel findKernel);

} // namespace shardc::exec
