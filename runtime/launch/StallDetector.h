// Follows the progress of each rank, and finds out that a job is stuck.
#pragma once

#include "runtime/launch/Exchange.h"
#include "runtime/launch/Rendezvous.h"
#include "runtime/launch/StallClock.h"

namespace shardc::launch {

class StallDetector {
public:
  /// The options outlive it.
  explicit StallDetector(const RendezvousOptions &options)
      : options_(options), ranks_(static_cast<size_t>(options.worldSize)) {}

  /// As many ranks as the options have by now; nothing was heard of them yet.
  void reset() { ranks_ = std::vector<Rank>(static_cast<size_t>(options_.worldSize)); }
  /// What a rank says of its progress.
  void note(int64_t rank, const RankProgress &position, double now);
  /// What it said last; empty if it has said nothing.
  const RankProgress &last(int64_t rank) const {
    return ranks_[static_cast<size_t>(rank)].clock.last();
  }

  /// Why a job that all ranks have joined is stuck, if it is.
  std::optional<Report> find(const RankConnections &connections, const Exchange &exchange,
                             double now) const;

private:
  struct Rank {
    StallClock clock;
    double movedAt = 0; ///< what it says of itself has changed
  };
  struct Suspects;

  Suspects suspectsOf(const RankConnections &connections, const Exchange &exchange,
                      double now) const;
  std::optional<Report> findStall(const Suspects &suspects, const Exchange &exchange,
                                  double now) const;
  std::optional<Report> findEndless(double now) const;

  const RendezvousOptions &options_;
  std::vector<Rank> ranks_;
};

} // namespace shardc::launch
