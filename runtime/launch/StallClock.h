// Measures how long a rank has been inside the same collective.
#pragma once

#include <algorithm>

#include "runtime/base/ProgressWord.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {

class StallClock {
public:
  /// What the rank says at a time in seconds. A step that has ended begins all anew.
  void update(const RankProgress &now, double seconds) {
    since_.resize(now.words.size(), seconds);
    for (size_t s = 0; s < now.words.size(); ++s)
      if (now.steps != last_.steps || s >= last_.words.size() || now.words[s] != last_.words[s])
        since_[s] = seconds;
    last_ = now;
  }
  /// Seconds of the longest stay; 0 outside of collectives.
  double longestStay(double seconds) const {
    return longest(seconds, [](uint32_t word) {
      return ProgressWord::isInside(word) && !ProgressWord::isMaking(word);
    });
  }
  /// Seconds for which a channel has been in the making; 0 if none is.
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

} // namespace shardc::launch
