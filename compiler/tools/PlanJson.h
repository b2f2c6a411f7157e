// A plan as one JSON document, for scripts; the text form is the one that tools read back.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Keys mirror the text form's words; indices are those of the lists beside them.
std::string planJson(const plan::Plan &plan);

} // namespace shardc::tools
