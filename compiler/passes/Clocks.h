// Which ops have certainly ended when an op starts, derived from stream order and waits. Vector
// clocks: one index per stream.
#pragma once

#include <array>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// For each stream the latest op (index in the segment) that has ended; -1 for none.
using Clock = std::array<int32_t, plan::kStreamsMax>;
inline constexpr Clock kClockZero = [] {
  Clock clock{};
  clock.fill(-1);
  return clock;
}();

inline void join(Clock &into, const Clock &other) {
  for (size_t s = 0; s < into.size(); ++s)
    into[s] = into[s] > other[s] ? into[s] : other[s];
}

/// Whether everything in `earlier` has ended where `at` holds; of so many streams, the first ones.
inline bool covers(const Clock &at, const Clock &earlier, size_t streams = plan::kStreamsMax) {
  for (size_t s = 0; s < streams; ++s)
    if (earlier[s] > at[s])
      return false;
  return true;
}

/// What has ended when each op starts. Alias ops execute nothing; their entry is of their position.
std::vector<Clock> clocksAtStart(const plan::Segment &segment);

/// The ops that write a value's bytes: the latest on each stream, alias ops followed to what they
/// name.
std::vector<Clock> definingOps(const plan::Segment &segment);

inline bool isAlias(const plan::Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Alias; }

} // namespace shardc::passes
