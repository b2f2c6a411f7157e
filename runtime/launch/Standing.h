// The combined progress of many ranks and what may delay them: as much as rank 0's supervisor needs
// to know of them while a job runs. Each relay (Relay.h) sends one for its ranks.
#pragma once

#include <limits>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

struct Standing {
  /// The rank for which a condition has lasted longest; rank -1: none.
  struct Longest {
    int64_t rank = -1;
    double seconds = 0;
    void take(const Longest &other) {
      if (other.rank >= 0 && (rank < 0 || other.seconds > seconds))
        *this = other;
    }
  };
  uint64_t stepsLeast = UINT64_MAX; ///< steps completed by the rank that is furthest behind
  int64_t last = -1;                ///< number of that rank; -1 without ranks
  uint64_t stepsMost = 0;
  Longest inside, making; ///< in a collective, and creating a channel
  Longest silent;         ///< without a sign of life
  bool isAsked = false;   ///< a rank was asked to end
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
  /// Returns the standing after further seconds without reports.
  Standing after(double seconds) const {
    Standing later = *this;
    for (Longest *each : {&later.inside, &later.making, &later.silent})
      each->seconds += seconds;
    later.still += seconds;
    return later;
  }

  /// The ranks must be below `ranks`.
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
