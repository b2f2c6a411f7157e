// How far ranks are and what may hold them up, of many ranks together: as much as rank 0's
// supervisor has to know of them while a job works. Each relay (Relay.h) passes one on.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace shardc::launch {

struct Standing {
  /// The rank for which something has lasted longest; -1: none.
  struct Longest {
    int64_t rank = -1;
    double seconds = 0;
    void take(const Longest &other);
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
  void merge(const Standing &other);
  /// Nothing was heard for so many seconds more.
  Standing after(double seconds) const;

  std::string pack() const;
  /// Of ranks below `ranks`.
  static std::optional<Standing> unpack(std::string_view body, int64_t ranks);
};

} // namespace shardc::launch
