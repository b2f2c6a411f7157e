// Where a body is cut into stages: which ops each of them has, and what it takes from its
// neighbours. Ops that read only what the host feeds and the step state are those of every stage.
#pragma once

#include <map>
#include <vector>

#include "compiler/passes/PipelineStages.h"

namespace shardc::passes {

/// The stage of what every stage has.
inline constexpr int32_t kEveryStage = -1;

class StageCut {
public:
  /// Separates sums of the body that are fused with what the next stage makes of them.
  StageCut(const plan::Role &role, plan::Segment &body, const PipelineStages &stages);

  int32_t stageOfOp(size_t op) const { return ofOp_[op]; }
  int32_t stageOf(plan::ValueId value) const { return ofValue_[value]; }
  /// Values of the forward pass that the stage takes from the one before it.
  const std::vector<plan::ValueId> &inputs(int32_t stage) const { return inputs_[at(stage)]; }
  /// Values of the backward pass that the stage takes from the one behind it.
  const std::vector<plan::ValueId> &gradients(int32_t stage) const { return gradients_[at(stage)]; }
  /// The last contribution of the stage to the gradient of a parameter, of which the value is the
  /// last of all stages; kNone if it has none.
  plan::ValueId contribution(plan::ValueId gradient, int32_t stage) const;
  /// The contribution of the stage to which the op that makes this one adds; kNone if it is the
  /// first.
  plan::ValueId addedTo(plan::ValueId contribution, int32_t stage) const;
  /// Whether no stage waits for what the op of the backward pass makes: no gradient that the stage
  /// before takes is made from it.
  bool isWeightsOnly(size_t op) const { return isWeightsOnly_[op] != 0; }
  /// Whether stages that do not have the op go on with the step state, or the largest magnitudes,
  /// that it takes.
  bool passesState(size_t op) const { return passesState_[op] != 0; }
  /// The op as the stage has it: it adds to contributions of its own stage only.
  plan::Op opFor(size_t op, int32_t stage) const;
  /// The largest magnitudes seen so far that the op adds to; kNone if it adds to none. Each stage
  /// has its own: a segment goes on with what is in their cell.
  plan::ValueId amaxSeenBefore(const plan::Op &op, size_t result) const;

private:
  static size_t at(int32_t stage) { return static_cast<size_t>(stage); }
  void separateSums(const PipelineStages &stages);
  void separateTallies(const plan::Role &role, const PipelineStages &stages);
  void separateReductions(const PipelineStages &stages);
  void assign(const plan::Role &role, const PipelineStages &stages);
  int32_t stageOf(const plan::Op &op, const PipelineStages &stages) const;
  void findCrossings();
  void findWeightsOnly();
  plan::ValueId sumBefore(plan::ValueId gradient) const;
  void cross(const plan::Op &op, plan::ValueId value, int32_t stage);

  plan::Segment &body_;
  int32_t stages_;                                ///< of which chunks are taken in turns
  std::map<plan::ValueId, int32_t> chunkOfTally_; ///< by sum, where it is not that of its layer
  std::vector<int32_t> ofOp_, ofValue_;
  std::vector<uint8_t> isParam_;       ///< by value
  std::vector<uint8_t> isAmaxSeen_;    ///< by value
  std::vector<uint8_t> isWeightsOnly_; ///< by op
  std::vector<uint8_t> passesState_;   ///< by op
  std::vector<std::vector<plan::ValueId>> inputs_, gradients_;
};

} // namespace shardc::passes
