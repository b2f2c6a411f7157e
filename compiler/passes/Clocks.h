// Vector clocks with one index per stream. They tell which ops have certainly completed when an op
// starts, according to stream order and waits.
#pragma once

#include <array>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// For each stream, the index of its latest completed op in the segment; -1 for none.
using Clock = std::array<int32_t, plan::kStreamsMax>;
inline constexpr Clock kClockZero = [] {
  Clock clock{};
  clock.fill(-1);
  return clock;
}();

/// Advances `into` to everything that has completed in `other`.
inline void join(Clock &into, const Clock &other) {
  for (size_t s = 0; s < into.size(); ++s)
    into[s] = into[s] > other[s] ? into[s] : other[s];
}

/// Whether everything in `earlier` has completed at `at`; only the first `streams` streams count.
inline bool covers(const Clock &at, const Clock &earlier, size_t streams = plan::kStreamsMax) {
  for (size_t s = 0; s < streams; ++s)
    if (earlier[s] > at[s])
      return false;
  return true;
}

/// For each op, the clock at its start. An alias op executes nothing; its entry describes its
/// position.
std::vector<Clock> clocksAtStart(const plan::Segment &segment);

/// For each value, the last op on each stream that writes its bytes. Aliases are resolved to the
/// values that they refer to.
std::vector<Clock> definingOps(const plan::Segment &segment);

/// Whether the op executes nothing, because its results only name bytes of its operands.
inline bool isAlias(const plan::Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Alias; }

} // namespace shardc::passes
