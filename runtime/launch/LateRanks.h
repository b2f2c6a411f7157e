// Finds ranks that are late step after step: the others wait for them in collectives, and they wait
// for nobody. Ranks say a few times a second where their streams are (base/ProgressWord.h), which
// costs a step nothing; this adds up how long each one was inside of a collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// A rank that waits less than the others.
struct LateRank {
  int64_t rank = 0;
  double share = 0, others = 0; ///< of the time that it waits, and the median of the ranks like it
  double seconds = 0;           ///< of the last window
  uint64_t steps = 0;           ///< in them
  bool operator==(const LateRank &) const = default;
};

class LateRanks {
public:
  /// Ranks are judged after windows of so much time and so many steps at least. A rank's share of a
  /// window is known to about three per cent.
  static constexpr double kWindowSeconds = 60;
  static constexpr uint64_t kStepsMin = 10;
  /// A late rank waits less than the others by at least this share of the time, in so many windows
  /// in a row. What transfers take is in the shares of all ranks, and only the difference counts.
  static constexpr double kGapLeast = 0.1;
  static constexpr int kWindows = 2;

  explicit LateRanks(int64_t ranks) : ranks_(static_cast<size_t>(ranks)) {}

  /// What a rank says of itself, at a time in seconds of a clock that only grows.
  void note(int64_t rank, const RankProgress &position, double now);
  /// Ranks that have become late with the window that has ended, if one has. One that stays late is
  /// not named again. Ranks are compared with those for which `kindOf` gives the same
  /// text, as the stage of a pipeline: another stage may have more to compute.
  std::vector<LateRank> find(double now, const std::function<std::string(int64_t)> &kindOf);

private:
  struct Rank {
    bool hasSpoken = false, isInside = false;
    int lateWindows = 0; ///< in a row
    double since = 0;    ///< what was said last holds from then on
    double waited = 0;
    uint64_t steps = 0, stepsBefore = 0; ///< now, and when the window began
  };

  void advance(Rank &rank, double now) const;
  uint64_t stepsOfWindow() const;
  void beginWindow(double now);

  std::vector<Rank> ranks_;
  double begin_ = -1; ///< of the window; -1: not all ranks have ended a step
};

} // namespace shardc::launch
