// A number for each value of a segment: equal numbers are equal values, in whatever role they are
// computed. What a role's ops compute is held against another role's by these numbers.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// Combines two numbers that represent values.
uint64_t mixed(uint64_t a, uint64_t b);

/// Numbers of the values of one run of a segment. All are 0 unless the numbering is on.
class ValueNumbers {
public:
  /// Of a part of a role's ranks.
  ValueNumbers(const Plan &plan, const Role &part, bool isOn)
      : plan_(plan), part_(part), isOn_(isOn) {}

  bool isOn() const { return isOn_; }
  void beginStep() { meetings_.clear(); }

  /// How often members of a group have met on a channel.
  using Meetings = std::map<std::pair<int16_t, ChannelId>, uint64_t>;
  /// Sets how often those of this step have met so far; what it was.
  Meetings setMeetings(Meetings meetings) { return std::exchange(meetings_, std::move(meetings)); }
  /// They have met so often again.
  void addMeetings(const Meetings &more, uint64_t times);
  /// Of how often those have met so far that meet again.
  uint64_t ofMeetings(const Meetings &again) const;

  void beginSegment(const Segment &segment) {
    if (isOn_)
      numbers_.assign(segment.values.size(), 0);
  }

  uint64_t of(ValueId value) const { return isOn_ ? numbers_[value] : 0; }
  void set(ValueId value, uint64_t number) {
    if (isOn_)
      numbers_[value] = number;
  }
  /// The sum of both is in the first.
  void add(ValueId into, ValueId value) {
    if (isOn_)
      numbers_[into] = mixed(numbers_[into], numbers_[value]);
  }
  /// Each result of an op, by the number of the first one.
  void setResults(const Op &op, uint64_t number) {
    for (size_t r = 0; isOn_ && r < op.results.size(); ++r)
      numbers_[op.results[r]] = r == 0 ? number : mixed(number, r);
  }

  /// What an op computes: by its kind, group, attributes and operands.
  uint64_t ofOp(const Op &op) const;
  /// What members of a group make together, which is the same for all of them. The next collective
  /// of the group and channel has another number.
  uint64_t ofMeeting(const Op &op);

private:
  const Plan &plan_;
  const Role &part_;
  bool isOn_;
  std::vector<uint64_t> numbers_;
  Meetings meetings_; ///< in this step so far
};

} // namespace shardc::plan::verifier
