// What a plan comes to on a backend: each op with the kernel that serves it and the bytes that it
// touches.
#pragma once

#include <string>

#include "runtime/exec/Bind.h"

namespace shardc::exec {

/// A page of text: needs, memory by arena, then each segment's ops, one a line. Ops that no kernel
/// serves are marked.
std::string explain(const plan::Plan &plan, FindKernel findKernel);

} // namespace shardc::exec
