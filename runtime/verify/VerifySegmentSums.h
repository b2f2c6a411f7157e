// What a run of a segment does to the marks of what it takes, and to the step under way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/verify/VerifySumNumbers.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

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
  bool isSometimes = false;     ///< runs are in some steps only
  bool isCompared = false;      ///< roles are held against each other
  bool hasEnded = false;        ///< by a 'step.finish'
  std::vector<uint8_t> updates; ///< of each block
};

/// Segments of a part of a role's ranks.
class SegmentSums {
public:
  /// `areNumbered` are values if roles are held against each other.
  SegmentSums(Inspection &inspection, uint32_t roleIndex, const Role &part, bool areNumbered);
  ~SegmentSums();

  /// What a run leaves; nothing if that is too much to find out.
  Holds follow(uint32_t segment, const Variant &variant, const Holds &taken);
  StepState &step();
  ValueNumbers &numbers();
  /// What optimizers have taken, for comparisons between roles.
  std::vector<Update> takeUpdates();

  /// Of each segment whether its microbatches are those of a step.
  const std::vector<bool> &isTraining() const;
  /// Of each block whether the role has its state, and the mark of this rank's part of it.
  const std::vector<bool> &hasState() const;
  Mark markOfState(int32_t block) const;

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace shardc::plan::verifier
