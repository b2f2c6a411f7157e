// Whether a GPU has room for all kernels of communicators that may run together.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes the first kernels without room; empty if all have room.
std::string findNoRoom(const Plan &plan);

} // namespace shardc::plan::oracle
