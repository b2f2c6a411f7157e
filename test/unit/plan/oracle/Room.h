// Whether all kernels of communicators that may run together fit a GPU.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes the first kernels that do not fit; empty if all fit.
std::string findNoRoom(const Plan &plan);

} // namespace shardc::plan::oracle
