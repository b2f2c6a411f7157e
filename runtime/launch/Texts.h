// Sentences from all ranks, printed once for the job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/hal/Peers.h"

namespace shardc::launch {

/// What every rank gave, by rank; all ranks call it, as they do allGather. Sentences have no
/// characters of value 0.
Result<std::vector<std::vector<std::string>>> gatherTexts(hal::Peers &peers, std::string_view what,
                                                          const std::vector<std::string> &mine);

/// Each sentence once, in the order of ranks. A sentence that not all ranks gave begins with the
/// ranks: `rank 1: ...`.
std::vector<std::string> mergeTexts(const std::vector<std::vector<std::string>> &byRank);

/// `1, 2, 5-7`.
std::string rangesOf(const std::vector<int64_t> &ranks);

} // namespace shardc::launch
