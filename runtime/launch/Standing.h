// How far ranks are and what may hold them up, of many ranks together: as much as rank 0's
// supervisor has to know of them while a job works. Each relay (Relay.h) passes one on.
#pragma once

#include <limits>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

struct Standing {
  /// The rank for which something has lasted longest; -1: none.
  struct Longest {
    int64_t rank = -1;
    double seconds = 0;
    void take(const Longest &other) {
      if (other.rank >= 0 && (rank < 0 || other.seconds > seconds))
        *this = other;
    }
  };
  uint64_t stepsLeast = UINT64_MAX; ///< steps ended, of the rank that is furthest behind
  int64_t last = -1;                ///< that rank; -1: there are no ranks
  uint64_t stepsMost = 0;
  Longest inside, making; ///< in a collective, and making a channel
  Longest silent;         ///< without a sign of life
  bool isAsked = false;   ///< one was asked to end
  double still =
      std::numeric_limits<double>::max(); ///< seconds since the last change of any of them

  bool hasRanks() const { return last >= 0; }
  void merge(const Standing &other) {
    if (other.hasRanks() && (!hasRanks() || other.stepsLeast < stepsLeast)) {
      stepsLeast = other.stepsLeast;
      last = other.last;
    }
    stepsMost = std::max(stepsMost, other.stepsMost);
    inside.take(other.inside);
    making.take(other.making);
    silent.take(other.silent);
    isAsked = isAsked || other.isAsked;
    still = std::min(still, other.still);
  }
  /// The standing after further seconds without news.
  Standing after(double seconds) const {
    Standing later = *this;
    for (Longest *each : {&later.inside, &later.making, &later.silent})
      each->seconds += seconds;
    later.still += seconds;
    return later;
  }

  /// Of ranks below `ranks`.
  static void fields(auto &io, auto &it, int64_t ranks) {
    constexpr double kSecondsMax = 1e9;
    io.field(it.stepsLeast, UINT64_MAX);
    io.orNone(it.last, ranks);
    io.field(it.stepsMost, UINT64_MAX);
    for (auto *each : {&it.inside, &it.making, &it.silent}) {
      io.orNone(each->rank, ranks);
      io.seconds(each->seconds, kSecondsMax);
    }
    io.field(it.isAsked, 1);
    io.seconds(it.still, kSecondsMax);
  }
};

} // namespace shardc::launch
