// Messages at the start of a run about the links that it will use.
#pragma once

#include <string>

#include "runtime/base/Report.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

/// Text with the links, and the measured bandwidth of all-gathers compared with the plan's
/// prediction. Empty if neither is known.
std::string linkText(const plan::Plan &plan, const std::string &links, double gatherGBs);

/// Warns if all-gathers are slower than predicted by more than the variation of measurements.
void judgeLinks(const plan::Plan &plan, double gatherGBs, const ReportSink &emit);

} // namespace shardc::run
