// Restarts after faults (`--restarts`): whether a run can have them, which of its saves is the
// newest, and the reports about restarts. Supervisors decide on restarts (launch/Restarts.h).
#pragma once

#include <optional>

#include "runtime/launch/Supervisor.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Returns the reason why this run cannot restart its ranks as requested; nothing if it can, or if
/// that is not requested.
std::optional<Report> refuseRestarts(const plan::Plan &plan, const RunToolOptions &options,
                                     Launcher launcher);

/// Returns the restart options for the supervisor that leads the run; none if restarts are not
/// requested. Each restart adds a line to the metrics file.
launch::RestartOptions leadRestarts(const plan::Plan &plan, const RunToolOptions &options);

/// Describes whether and from where a run can continue after its ranks were killed, for messages:
/// `a run can resume after step 4 from 'ckpt'`.
std::string whatIsLeftOf(const plan::Plan &plan);

/// Describes the state from which a start of the ranks begins, for messages: `after step 8 from
/// 'ckpt'`.
std::string whereFrom(int64_t savedStep, const std::string &folder, bool hasMemory);

/// Adds a line to the metrics file. No rank may have the file open. Io if that fails.
Status addMetricsLine(const std::string &path, const std::string &line);

/// Returns a callback that records a rank that is late step after step in the metrics file; empty
/// if there is no such file.
std::function<void(const launch::LateRank &, int64_t step, const launch::Hello &)>
noteLateIn(const RunToolOptions &options);

/// Returns the plan with its options changed so that it loads the job's own save of this step.
plan::Plan continuedPlan(const plan::Plan &plan, int64_t savedStep);

} // namespace shardc::tools
