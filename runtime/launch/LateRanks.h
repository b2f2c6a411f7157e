// Finds ranks that are late step after step: the others wait for them in collectives, and they wait
// for nobody. Ranks report the positions of their streams (base/ProgressWord.h) a few times a
// second, which costs a step nothing; this class sums how long each one was inside of a collective.
#pragma once

#include <functional>
#include <map>
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

/// Shares of a window that ranks have waited, by what they are compared with, in thousandths: how
/// many ranks have waited for each, and which ranks least. Relays add theirs up.
struct Waits {
  struct Kind {
    std::map<int64_t, int64_t> ranks;               ///< by share
    std::vector<std::pair<int64_t, int64_t>> least; ///< shares and ranks, the lowest first
  };
  static constexpr size_t kLeastMax = 8; ///< ranks that are known by number
  static constexpr int kParts = 1000;    ///< of a window

  std::map<std::string, Kind> kinds;

  void add(const std::string &kind, int64_t rank, double share);
  void merge(const Waits &other);
  /// Of ranks below `ranks`.
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

/// Collects the waiting times that nearby ranks report. A share is accurate to about three per
/// cent.
class LateRanks {
public:
  /// Records a rank's report, at a time in seconds of a monotonic clock.
  void note(int64_t rank, const RankProgress &position, double now);
  /// The waiting times since the last call; nothing at the first call. Ranks are compared with
  /// those for which `kindOf` gives the same text, such as the stage of a pipeline, since another
  /// stage may have more to compute.
  Waits take(double now, const std::function<std::string(int64_t)> &kindOf);

private:
  struct Rank {
    bool isInside = false;
    double since = 0; ///< what was said last holds from then on
    double waited = 0;
  };
  void advance(Rank &rank, double now) const;

  std::map<int64_t, Rank> ranks_;
  double begin_ = -1; ///< it was asked before
};

/// Judges the waits of all ranks together.
class LateJudge {
public:
  /// Ranks are judged after windows of so much time and so many steps at least.
  static constexpr double kWindowSeconds = 60;
  static constexpr uint64_t kStepsMin = 10;
  /// A late rank waits less than the others by at least this share of the time, in so many windows
  /// in a row. What transfers take is in the shares of all ranks, and only the difference counts.
  static constexpr double kGapLeast = 0.1;
  static constexpr int kWindows = 2;

  /// Whether it is time to ask what ranks have waited; `steps` that all have ended.
  bool isDue(double now, uint64_t steps) const;
  /// Ranks that have become late with the window that ends; one that stays late is not named again.
  std::vector<LateRank> judge(const Waits &waits, double now, uint64_t steps);

private:
  double begin_ = -1; ///< of the window; -1: there was none
  uint64_t stepsBefore_ = 0;
  std::map<int64_t, int> lateWindows_; ///< in a row, by rank
};

} // namespace shardc::launch
