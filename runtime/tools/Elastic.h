// Elastic jobs (`--elastic`, `--spares`): whether a run can be one, its plans by number of ranks,
// and what is reported where it goes on as other ranks. Rank 0's supervisor decides
// (launch/Elastic.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/launch/Supervisor.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// The plans of a file by number of ranks, in its order: those of one number follow each other.
std::vector<std::span<const plan::Plan>> plansBySize(std::span<const plan::Plan> plans);

/// InvalidInput unless the file has plans for the sizes that are asked for, and no others.
Status checkSizes(std::span<const plan::Plan> plans, const RunToolOptions &options);

/// Why this run cannot be elastic as it is asked to; none if it can, or is not asked to.
std::optional<Report> refuseElastic(const RunToolOptions &options, Launcher launcher);

/// The sizes of the run; none where it is not elastic. `ranks` is the largest number, and places
/// that are lost are waited for as long as ranks that start.
launch::ElasticOptions elasticOptionsOf(const RunToolOptions &options, int64_t ranks,
                                        double timeoutSeconds);

/// Tells that the run goes on as other ranks, and adds a line to the metrics.
std::function<void(const launch::CrewChange &)> noteCrewsOf(const plan::Plan &plan,
                                                            const RunToolOptions &options);

} // namespace shardc::tools
