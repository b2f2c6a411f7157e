// Reports from all ranks, reported once for the job.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/hal/Peers.h"

namespace shardc::launch {

/// Gathers every rank's reports, by rank. All ranks call it, like allGather. Internal if a rank
/// sent something else.
Result<std::vector<std::vector<Report>>> gatherReports(hal::Peers &peers, std::string_view what,
                                                       const std::vector<Report> &mine);

/// Each report once, in the order of ranks. The text of one that not all ranks have begins with the
/// ranks: `rank 1: ...`.
std::vector<Report> mergeReports(const std::vector<std::vector<Report>> &byRank);

/// The rank that a report is about: its text begins with `rank N`. None of the others.
std::optional<int64_t> rankNamedBy(std::string_view text);

/// `1, 2, 5-7`.
std::string rangesOf(const std::vector<int64_t> &ranks);

} // namespace shardc::launch
