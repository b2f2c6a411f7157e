// When the stages of a pipeline run their passes: each rank runs one pass after the other, and a
// transfer begins when both its ends are ready. The times of the passes themselves are those of
// StepTime.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shardc::predict {

/// One end of a transfer, or of a collective of several roles: a pass issues it so many seconds
/// after its begin.
struct Meeting {
  int32_t channel = -1;
  bool isSend = false;
  double after = 0;
  double seconds = 0;   ///< that it takes once both ends are ready
  bool isFirst = false; ///< nothing else of the pass begins before it has ended
  uint32_t op = 0;      ///< in the pass's segment
};

struct Pass {
  double seconds = 0;            ///< without its transfers
  std::vector<Meeting> meetings; ///< those that hold back the whole pass come first
};

/// Begin and end of a pass, seconds since the step began.
struct PassTime {
  double begin = 0, end = 0;
  std::vector<double> meetingEnds; ///< of each of its meetings
};

/// For each actor the times of its passes, in order; nothing if they wait for each other forever.
std::optional<std::vector<std::vector<PassTime>>>
timesOf(const std::vector<std::vector<Pass>> &actors);

} // namespace shardc::predict
