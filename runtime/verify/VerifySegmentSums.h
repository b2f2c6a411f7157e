// The transfer function of checkSums(): how one run of a segment changes the marks of cells and the
// state of the step. It also numbers values, so that roles can be compared: values with equal
// numbers are equal, whatever role computes them.
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

/// Whether the cell holds sums that the run only reports and no gradient uses.
inline bool isReportedOnly(CellKind kind) {
  return kind == CellKind::RouterLosses || kind == CellKind::PredictionLosses ||
         kind == CellKind::PreferenceSums;
}

// ---- numbers of values ----

/// Hashes two value numbers into the number of a value that depends on both, in order.
uint64_t mixed(uint64_t a, uint64_t b);

/// Value numbers of one run of a segment. All are 0 unless numbering is on. Only plans in which
/// several roles update the same block need it.
class ValueNumbers {
public:
  /// `part` is a part of a role's ranks (partsAlong()).
  ValueNumbers(const Plan &plan, const Role &part, bool isOn)
      : plan_(plan), part_(part), isOn_(isOn) {}

  bool isOn() const { return isOn_; }
  void beginStep() { meetings_.clear(); }

  /// Advances the counters of the segment's collectives by `times` runs that the walk skips.
  void addMeetings(const Segment &segment, const Variant &variant, uint64_t times);
  /// Whether the op passes its first operand on unchanged, so that the result has the same number.
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
  /// `into` becomes the sum of both values.
  void add(ValueId into, ValueId value) {
    if (isOn_)
      numbers_[into] = mixed(numbers_[into], numbers_[value]);
  }
  /// Numbers all results of an op: the first one gets `number`, the others derive from it.
  void setResults(const Op &op, uint64_t number) {
    for (size_t r = 0; isOn_ && r < op.results.size(); ++r)
      numbers_[op.results[r]] = r == 0 ? number : mixed(number, r);
  }

  /// The number of an op's result, from its kind, group, attributes and operands.
  uint64_t ofOp(const Op &op) const;
  /// The number of a collective's result, which is the same for all members of the group. The next
  /// collective on the same group and channel gets another number.
  uint64_t ofMeeting(const Op &op);

private:
  const Plan &plan_;
  const Role &part_;
  bool isOn_;
  std::vector<uint64_t> numbers_;
  /// How many collectives the group has issued on a channel in this step.
  std::map<std::pair<int16_t, ChannelId>, uint64_t> meetings_;
};

// ---- one run of a segment ----

/// The state of a value or cell: its mark, and its value number.
struct Held {
  Mark mark;
  uint64_t number = 0;
  bool operator==(const Held &) const = default;
};
/// One entry per cell; or one per boundary, for what a run reads from its cells or stores to them.
using Holds = std::vector<Held>;

/// The position in the program, and what the step has done so far.
struct StepState {
  int64_t steps = 0;            ///< iterations of the current loop of steps; 0 outside of loops
  int64_t microbatches = 0;     ///< in a step
  int64_t evalMicrobatches = 0; ///< of the current evaluation
  int64_t microbatch = 0;       ///< the current microbatch of the step
  bool isSometimes = false;     ///< the runs are inside an `every` that is due in some steps only
  bool isCompared = false;      ///< roles are compared with each other
  bool hasEnded = false;        ///< a 'step.finish' has run
  std::vector<uint8_t> updates; ///< by block: the number of its updates
  /// For each block, the contributions to its gradient whose squares are in the norm; none if the
  /// norm omits the block.
  std::vector<std::optional<OpSet>> squared;
};

/// Follows runs of segments on a part of a role's ranks. Owned by the walk of checkSums(); keeps
/// references to the inspection and the plan.
class SegmentSums {
public:
  virtual ~SegmentSums() = default;
  SegmentSums(const SegmentSums &) = delete;
  SegmentSums &operator=(const SegmentSums &) = delete;

  /// The marks that a run stores, by boundary; empty if the inspection's limit of visits is
  /// reached.
  virtual Holds follow(uint32_t segment, const Variant &variant, const Holds &taken) = 0;
  /// The mark of a rank's shard of a block's state at the start of a step.
  virtual Mark markOfState(int32_t block) const = 0;

  StepState step;
  ValueNumbers numbers;
  OpSets sets;                  ///< sets of contribution marks
  std::vector<Update> updates;  ///< what optimizers read, for comparison between roles
  std::vector<bool> isTraining; ///< by segment: it processes microbatches of a training step

protected:
  SegmentSums(ValueNumbers valueNumbers, OpSets opSets)
      : numbers(std::move(valueNumbers)), sets(std::move(opSets)) {}
};

/// `areNumbered`: value numbers are computed, because roles are compared.
std::unique_ptr<SegmentSums> makeSegmentSums(Inspection &inspection, uint32_t roleIndex,
                                             const Role &part, bool areNumbered);

} // namespace shardc::plan::verifier
