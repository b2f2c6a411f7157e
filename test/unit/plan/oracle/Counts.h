// Rows whose number is in another value.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes the first violation; empty if there is none. Ops on groups of rows must take the
/// counts of their rows, and places that were computed with these counts. Sums over ranks must be
/// of complete rows. Contents of buffers from earlier segments are not followed.
std::string findCountBreak(const Plan &plan);

} // namespace shardc::plan::oracle
