// Whether the kernels of communicators that may run at once have room on a GPU together.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// The first that have none, or nothing.
std::string findNoRoom(const Plan &plan);

} // namespace shardc::plan::oracle
