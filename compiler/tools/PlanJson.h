// Writes a plan as one JSON document, for scripts. Only the text form can be read back.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Keys are the words of the text form; indices refer to lists in the same document.
std::string planJson(const plan::Plan &plan);

} // namespace shardc::tools
