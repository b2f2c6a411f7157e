// Reports from all ranks, issued once for the job.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/hal/Peers.h"

namespace shardc::launch {

/// Gathers every rank's reports, by rank. All ranks must call it, as for allGather. Internal if a
/// rank sent something else.
Result<std::vector<std::vector<Report>>> gatherReports(hal::Peers &peers, std::string_view what,
                                                       const std::vector<Report> &mine);

/// Returns each distinct report once, in the order of ranks. The text of a report that not all
/// ranks have begins with its ranks: `rank 1: ...`.
std::vector<Report> mergeReports(const std::vector<std::vector<Report>> &byRank);

/// Returns the rank that a report is about, if its text begins with `rank N`; otherwise nothing.
std::optional<int64_t> rankNamedBy(std::string_view text);

/// Formats rank numbers compactly, such as `1, 2, 5-7`.
std::string rangesOf(const std::vector<int64_t> &ranks);

} // namespace shardc::launch
