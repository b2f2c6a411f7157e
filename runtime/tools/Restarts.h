// Restarts after faults (`--restarts`): whether a run can have them, which of its saves is the
// newest, and what is reported of each restart. Supervisors decide (launch/Restarts.h).
#pragma once

#include <optional>

#include "runtime/launch/Supervisor.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Why this run cannot restart its ranks as it is asked to; none if it can, or is not asked to.
std::optional<Report> refuseRestarts(const plan::Plan &plan, const RunToolOptions &options,
                                     Launcher launcher);

/// Restarts of a run, for the supervisor that leads. Each adds a line to the file of metrics. None
/// where none are asked for.
launch::RestartOptions leadRestarts(const plan::Plan &plan, const RunToolOptions &options);

/// Whether and from where a run can continue whose ranks were killed, for people: `a run can resume
/// after step 4 from 'ckpt'`.
std::string whatIsLeftOf(const plan::Plan &plan);

/// The state from which a start of the ranks begins, for messages: `after step 8 from 'ckpt'`.
std::string whereFrom(int64_t savedStep, const std::string &folder, bool hasMemory);

/// Adds a line to the file of metrics while no rank has it open. Io if that fails.
Status addMetricsLine(const std::string &path, const std::string &line);

/// A callback that records a rank that is late step after step in the file of metrics; empty
/// without such a file.
std::function<void(const launch::LateRank &, int64_t step, const launch::Hello &)>
noteLateIn(const RunToolOptions &options);

/// The plan with options changed so that it loads the job's own save of this step.
plan::Plan continuedPlan(const plan::Plan &plan, int64_t savedStep);

} // namespace shardc::tools
