// Messages at the start of a run about the links that it will use.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// The links, and the measured bandwidth of all-gathers compared with the plan's prediction. Empty
/// if neither is known.
std::string linkText(const plan::Plan &plan, const std::string &links, double gatherGBs);

/// A warning if gathers are slower than predicted by more than measurements vary; otherwise
/// empty.
std::string linkWarning(const plan::Plan &plan, double gatherGBs);

} // namespace shardc::exec
