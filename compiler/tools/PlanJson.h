// A plan as one JSON document, for scripts. Tools read only the text form back.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Keys have the words of the text form; indices refer to lists of the same document.
std::string planJson(const plan::Plan &plan);

} // namespace shardc::tools
