// What a run of a segment does to the marks of what it takes, and to the step under way. Values
// have numbers, too: equal numbers are equal values, in whatever role they are computed, so that
// what roles compute is compared by them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

/// Losses that a run only prints.
inline bool isReportedOnly(CellKind kind) {
  return kind == CellKind::RouterLosses || kind == CellKind::PredictionLosses;
}

// ---- numbers of values ----

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

  /// Counts the meetings of the segment's collectives `times` more.
  void addMeetings(const Segment &segment, const Variant &variant, uint64_t times);
  /// Whether its result has the number of its first operand.
  static bool passesOn(const Op &op);

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
  /// How often members of a group have met on a channel in this step so far.
  std::map<std::pair<int16_t, ChannelId>, uint64_t> meetings_;
};

// ---- one run of a segment ----

/// A mark, and a number: equal where roles compute the same from the same.
struct Held {
  Mark mark;
  uint64_t number = 0;
  bool operator==(const Held &) const = default;
};
/// Of cells; or of what a run takes from its cells, or leaves in them, by boundary.
using Holds = std::vector<Held>;

/// Where runs are in the program, and what they have done in the step.
struct StepState {
  int64_t steps = 0;            ///< of the loop under way; 0 outside of loops
  int64_t microbatches = 0;     ///< of a step
  int64_t evalMicrobatches = 0; ///< of the evaluation under way
  int64_t microbatch = 0;       ///< of the step, that runs are for
  bool isSometimes = false;     ///< the runs are inside an `every` that is not due in each step
  bool isCompared = false;      ///< roles are held against each other
  bool hasEnded = false;        ///< by a 'step.finish'
  std::vector<uint8_t> updates; ///< of each block
  /// The contributions to each block's gradient whose squares are in the norm; none where it leaves
  /// the block out.
  std::vector<std::optional<OpSet>> squared;
};

/// Segments of a part of a role's ranks.
class SegmentSums {
public:
  virtual ~SegmentSums() = default;
  SegmentSums(const SegmentSums &) = delete;
  SegmentSums &operator=(const SegmentSums &) = delete;

  /// What a run leaves; nothing if that is too much to find out.
  virtual Holds follow(uint32_t segment, const Variant &variant, const Holds &taken) = 0;
  /// The mark of this rank's part of a block's state.
  virtual Mark markOfState(int32_t block) const = 0;

  StepState step;
  ValueNumbers numbers;
  OpSets sets;                  ///< sets of contribution marks
  std::vector<Update> updates;  ///< what optimizers have read, for comparison between roles
  std::vector<bool> isTraining; ///< by segment: it processes microbatches of a training step

protected:
  SegmentSums(ValueNumbers valueNumbers, OpSets opSets)
      : numbers(std::move(valueNumbers)), sets(std::move(opSets)) {}
};

/// `areNumbered` are values if roles are held against each other.
std::unique_ptr<SegmentSums> makeSegmentSums(Inspection &inspection, uint32_t roleIndex,
                                             const Role &part, bool areNumbered);

} // namespace shardc::plan::verifier
