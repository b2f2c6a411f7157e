// Follows the progress of each rank, and finds out that a job is stuck.
#pragma once

#include <map>

#include "runtime/launch/Exchange.h"
#include "runtime/launch/Rendezvous.h"
#include "runtime/launch/StallClock.h"

namespace shardc::launch {

class StallDetector {
public:
  /// The options outlive it.
  explicit StallDetector(const RendezvousOptions &options) : options_(options) {}

  /// Nothing was heard of any rank.
  void reset() { ranks_.clear(); }
  /// What a rank says of its progress.
  void note(int64_t rank, const RankProgress &position, double now);
  /// What it said last; empty if it has said nothing.
  const RankProgress &last(int64_t rank) const;
  /// The ranks of these connections together.
  Standing standingOf(std::span<const Connection *const> ranks, double now) const;

  /// Whether a job whose ranks stand like this is stuck: then it is time to ask where each is.
  bool isStuck(const Standing &all, const Exchange &exchange, double now) const;
  /// Why, if it is.
  std::optional<Report> find(const Standing &all, const Exchange &exchange, double now) const;

private:
  struct Rank {
    StallClock clock;
    double movedAt = 0; ///< what it says of itself has changed
  };

  bool isStalled(const Standing &all, const Exchange &exchange, double now) const;
  bool isLate(const Standing &all) const;
  bool isLost(const Standing &all) const;
  static bool isEndless(const Standing &all);
  std::vector<RankProgress> positions(const Exchange *exchange) const;
  Report stallOf(const Standing &all, const Exchange &exchange, double now) const;

  const RendezvousOptions &options_;
  std::map<int64_t, Rank> ranks_; ///< that have said something
};

} // namespace shardc::launch
