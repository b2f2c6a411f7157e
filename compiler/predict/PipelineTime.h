// When the stages of a pipeline run their passes: each rank runs one pass after the other, and a
// transfer begins when both its ends are ready. The times of the passes themselves are those of
// StepTime.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  double seconds = 0; ///< without its transfers
  /// Those that hold back the whole pass come first. Passes that are alike may share them.
  std::span<const Meeting> meetings;
};

/// Begin and end of a pass, seconds since the step began.
struct PassTime {
  double begin = 0, end = 0;
  size_t firstMeeting = 0; ///< of its actor
};

struct ActorTimes {
  std::vector<PassTime> passes;    ///< in order
  std::vector<double> meetingEnds; ///< of the meetings of all passes
};

/// Of each actor; nothing if they wait for each other forever.
std::optional<std::vector<ActorTimes>> timesOf(const std::vector<std::vector<Pass>> &actors);

} // namespace shardc::predict
