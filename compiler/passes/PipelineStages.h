// Which stage of a pipeline has which units, and what a stage does when: 1F1B, the schedule in
// which a stage runs as many forward passes ahead as there are stages behind it, and then one
// forward and one backward pass in turn.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

struct PipelineStages {
  int64_t count = 1;
  std::vector<int32_t> ofUnit; ///< by unit: 0 to count - 1
};

/// As the job asks for it.
PipelineStages readStages(const plan::Plan &plan);

/// What a stage does with the microbatches of a step. The pass of the last stage is forward and
/// backward at once; that of each other stage is one or the other. A pass also receives what the
/// next one needs, so that this is there when it begins.
class StageSchedule {
public:
  StageSchedule(int64_t stage, int64_t stages, int64_t microbatches);

  bool isFirst() const { return stage_ == 0; }
  bool isLast() const { return stage_ == stages_ - 1; }
  int64_t microbatches() const { return microbatches_; }
  /// Microbatches that may be between their forward and their backward pass.
  int64_t inFlight() const;

  /// All microbatches of so many except the last; nothing if there is one.
  static std::optional<plan::Pred> allButLast(int64_t microbatches);

  // The microbatches whose pass receives what the next pass of the stage takes; nothing if none
  // does. The next pass is a forward one, which takes an input, or a backward one, which takes a
  // gradient.
  std::optional<plan::Pred> inputAfterForward() const;
  std::optional<plan::Pred> gradientAfterForward() const;
  std::optional<plan::Pred> inputAfterBackward() const;
  std::optional<plan::Pred> gradientAfterBackward() const;

  /// From the microbatch of a backward pass to that of the forward pass behind it, and from that of
  /// a forward pass to that of the backward pass behind it.
  int64_t inputShift() const { return ahead_ + 1; }
  int64_t gradientShift() const { return -std::min(ahead_, microbatches_ - 1); }

  /// The runs of a step. The last stage has one segment for both.
  std::vector<plan::ProgramNode> program(uint32_t forward, uint32_t backward) const;

private:
  std::optional<plan::Pred> between(int64_t begin, int64_t last) const;

  int64_t stage_, stages_, microbatches_;
  int64_t ahead_; ///< forward passes before the first one that a backward pass follows
};

} // namespace shardc::passes
