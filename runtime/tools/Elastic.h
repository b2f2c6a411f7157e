// Elastic jobs (`--elastic`, `--spares`): whether a run can be elastic, its plans by number of
// ranks, and the reports about a change of its ranks. Rank 0's supervisor decides on changes
// (launch/Elastic.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/launch/Supervisor.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Groups the plans of a file by number of ranks, in the order of the file, where plans for the
/// same number are consecutive.
std::vector<std::span<const plan::Plan>> plansBySize(std::span<const plan::Plan> plans);

/// InvalidInput unless the file has plans for exactly the requested sizes.
Status checkSizes(std::span<const plan::Plan> plans, const RunToolOptions &options);

/// Returns the reason why this run cannot be elastic as requested; nothing if it can, or if that is
/// not requested.
std::optional<Report> refuseElastic(const RunToolOptions &options, Launcher launcher);

/// Returns the sizes of the run; empty if it is not elastic. `ranks` is the largest number. The
/// waiting time for lost places is the same as for ranks that start: `timeoutSeconds`.
launch::ElasticOptions elasticOptionsOf(const RunToolOptions &options, int64_t ranks,
                                        double timeoutSeconds);

/// Returns a function that reports that the run continues with other ranks, and adds a line to the
/// metrics.
std::function<void(const launch::CrewChange &)> noteCrewsOf(const plan::Plan &plan,
                                                            const RunToolOptions &options);

} // namespace shardc::tools
