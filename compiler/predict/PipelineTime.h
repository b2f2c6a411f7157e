// Simulates a pipeline: each rank executes its passes in order, and a transfer begins when both
// ends are ready. The durations of passes come from StepTime.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shardc::predict {

/// One end of a transfer, or of a collective between roles. The pass reaches this synchronisation
/// point `after` seconds after its start.
struct Meeting {
  int32_t channel = -1;
  bool isSend = false;
  double after = 0;
  double seconds = 0;   ///< duration once both ends are ready
  bool isFirst = false; ///< the rest of the pass waits for it
  uint32_t op = 0;      ///< index in the pass's segment
};

/// One pass of an actor, which is a rank of a pipeline stage.
struct Pass {
  double seconds = 0; ///< duration without transfers
  /// Meetings with `isFirst` come first. Equal passes may share the list.
  std::span<const Meeting> meetings;
};

/// Begin and end of a pass in seconds since the step began.
struct PassTime {
  double begin = 0, end = 0;
  size_t firstMeeting = 0; ///< index of the pass's first entry in meetingEnds
};

/// When the passes of one actor run.
struct ActorTimes {
  std::vector<PassTime> passes;    ///< in order
  std::vector<double> meetingEnds; ///< end times of the synchronisation points of all passes
};

/// The times of each actor; empty if they deadlock.
std::optional<std::vector<ActorTimes>> timesOf(const std::vector<std::vector<Pass>> &actors);

} // namespace shardc::predict
