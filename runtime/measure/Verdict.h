// Evaluates the rates of all ranks: whether a rank is slower than the others, and whether all are
// slower than expected.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/measure/Measure.h"
#include "runtime/measure/MemoryTest.h"

namespace shardc::measure {

struct VerdictOptions {
  double slower = 0.1; ///< share below the median from which a rank is reported
  double below = 0.25; ///< share below the expected rate, for the whole machine
};

/// The place of a rank, for messages.
struct RankPlace {
  std::string host;
  std::string gpu; ///< `, GPU 2`; empty on the host
};

/// Returns a report if a rank's memory has faults. `what` is `device` or `host`.
std::optional<Report> judgeMemory(const MemoryFindings &findings, std::string_view what, int rank,
                                  const RankPlace &place);

/// Returns a report for each rank and kind of work whose rate is too low, with the worst size of
/// each kind; and one for each kind of work whose median is below `expected` at the same sizes. For
/// collectives, the report names all ranks of a slow group. `places` are by rank.
std::vector<Report> judge(std::span<const Measured> measured, std::span<const Rate> expected,
                          std::span<const RankPlace> places, const VerdictOptions &options);

} // namespace shardc::measure
