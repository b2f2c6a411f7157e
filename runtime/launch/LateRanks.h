// Finds ranks that are late step after step: the others wait for them in collectives, and they wait
// for nobody. Ranks report the positions of their streams (base/ProgressWord.h) a few times a
// second, which costs a step nothing. This class sums the time that each rank was inside a
// collective.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// A rank that waits less than the others do.
struct LateRank {
  int64_t rank = 0;
  double share = 0, others = 0; ///< share of time waited, and the median of its kind
  double seconds = 0;           ///< seconds in the last window
  uint64_t steps = 0;           ///< completed in that window
  bool operator==(const LateRank &) const = default;
};

/// The shares of a window that ranks have waited, in thousandths, for each kind of ranks that are
/// compared with each other: how many ranks waited for each share, and which ranks waited least.
/// Relays add up those of their ranks.
struct Waits {
  struct Kind {
    std::map<int64_t, int64_t> ranks;               ///< number of ranks by share
    std::vector<std::pair<int64_t, int64_t>> least; ///< shares and ranks, ascending
  };
  static constexpr size_t kLeastMax = 8; ///< ranks that are identified individually
  static constexpr int kParts = 1000;    ///< of a window

  std::map<std::string, Kind> kinds;

  void add(const std::string &kind, int64_t rank, double share);
  void merge(const Waits &other);
  /// Ranks and their counts must be below `ranks`.
  static void fields(auto &io, auto &it, int64_t ranks) {
    io.list(it.kinds, ranks, [&io, ranks](auto &kind) {
      io.field(kind.first);
      io.list(kind.second.ranks, ranks, [&io, ranks](auto &each) {
        io.field(each.first, kParts);
        io.field(each.second, ranks);
      });
      io.list(kind.second.least, kLeastMax, [&io, ranks](auto &each) {
        io.field(each.first, kParts);
        io.field(each.second, ranks - 1);
      });
    });
  }
};

/// Collects the waiting times that the ranks connected to this process report. A share is accurate
/// to about three per cent.
class LateRanks {
public:
  /// Records a rank's report at time `now`, in seconds of a monotonic clock.
  void note(int64_t rank, const RankProgress &position, double now);
  /// Returns the waiting times since the last call; empty at the first call. Ranks are compared
  /// with those for which `kindOf` returns the same text, such as the stage of a pipeline, since
  /// another stage may have more to compute.
  Waits take(double now, const std::function<std::string(int64_t)> &kindOf);

private:
  struct Rank {
    bool isInside = false;
    double since = 0; ///< time of the last report
    double waited = 0;
  };
  void advance(Rank &rank, double now) const;

  std::map<int64_t, Rank> ranks_;
  double begin_ = -1; ///< time of the last call of take
};

/// Evaluates the waiting times of all ranks together.
class LateJudge {
public:
  /// Ranks are judged after windows of at least this duration and this number of steps.
  static constexpr double kWindowSeconds = 60;
  static constexpr uint64_t kStepsMin = 10;
  /// A late rank's share is lower than that of the others by at least this much, in this number of
  /// consecutive windows. The time that transfers take is in the shares of all ranks, so only the
  /// difference counts.
  static constexpr double kGapLeast = 0.1;
  static constexpr int kWindows = 2;

  /// Whether it is time to collect the waiting times; `steps` is the number of steps that all ranks
  /// have completed.
  bool isDue(double now, uint64_t steps) const;
  /// Returns the ranks that have become late in the window that now ends. A rank that stays late is
  /// not returned again.
  std::vector<LateRank> judge(const Waits &waits, double now, uint64_t steps);

private:
  double begin_ = -1; ///< start of the window; -1: there was none
  uint64_t stepsBefore_ = 0;
  std::map<int64_t, int> lateWindows_; ///< consecutive late windows, by rank
};

} // namespace shardc::launch
