// The exit statuses of shardc-run and of its ranks.
#pragma once

namespace shardc {

constexpr int kInputStatus = 1;   ///< the plan, or a file that it names, is wrong
constexpr int kUsageStatus = 2;   ///< the command line is wrong
constexpr int kFailureStatus = 3; ///< the run failed

} // namespace shardc
