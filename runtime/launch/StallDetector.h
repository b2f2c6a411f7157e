// Follows the progress of each rank, and detects that a job is stuck.
#pragma once

#include <map>

#include "runtime/base/ProgressWord.h"
#include "runtime/launch/Exchange.h"
#include "runtime/launch/Rendezvous.h"

namespace shardc::launch {

/// Measures how long a rank has been inside the same collective.
class StallClock {
public:
  /// Records a rank's report at a time in seconds. A completed step restarts the measurement.
  void update(const RankProgress &now, double seconds) {
    since_.resize(now.words.size(), seconds);
    for (size_t s = 0; s < now.words.size(); ++s)
      if (now.steps != last_.steps || s >= last_.words.size() || now.words[s] != last_.words[s])
        since_[s] = seconds;
    last_ = now;
  }
  /// Returns the seconds of the longest stay in a collective; 0 outside of collectives.
  double longestStay(double seconds) const {
    return longest(seconds, [](uint32_t word) {
      return ProgressWord::isInside(word) && !ProgressWord::isMaking(word);
    });
  }
  /// Returns the longest time in seconds for which a channel is being created; 0 if none is.
  double longestMaking(double seconds) const { return longest(seconds, ProgressWord::isMaking); }
  const RankProgress &last() const { return last_; }

private:
  double longest(double seconds, auto counts) const {
    double longest = 0;
    for (size_t s = 0; s < since_.size(); ++s)
      if (counts(last_.words[s]))
        longest = std::max(longest, seconds - since_[s]);
    return longest;
  }

  RankProgress last_;
  std::vector<double> since_; ///< by stream
};

class StallDetector {
public:
  /// `options` must outlive it.
  explicit StallDetector(const RendezvousOptions &options) : options_(options) {}

  /// Discards the reports of all ranks.
  void reset() { ranks_.clear(); }
  /// Records a rank's progress report.
  void note(int64_t rank, const RankProgress &position, double now);
  /// Returns the rank's last report; empty if there is none.
  const RankProgress &last(int64_t rank) const;
  /// Returns the combined standing of these ranks and of the ranks behind these relays.
  Standing standingOf(std::span<const Connection *const> ranks, const Connections &relays,
                      double now) const;

  /// Whether a job with this standing is stuck. If so, all ranks are to be asked for their
  /// positions.
  bool isStuck(const Standing &all, const Exchange &exchange, double now) const;
  /// Returns the reason if the job is stuck.
  std::optional<Report> find(const Standing &all, const Exchange &exchange, double now) const;

private:
  struct Rank {
    StallClock clock;
    double movedAt = 0; ///< when its report last changed
  };

  bool isStalled(const Standing &all, const Exchange &exchange, double now) const;
  bool isLate(const Standing &all) const;
  bool isLost(const Standing &all) const;
  static bool isEndless(const Standing &all);
  std::vector<RankProgress> positions(const Exchange *exchange) const;
  Report stallOf(const Standing &all, const Exchange &exchange, double now) const;

  const RendezvousOptions &options_;
  std::map<int64_t, Rank> ranks_; ///< ranks that have reported
};

} // namespace shardc::launch
