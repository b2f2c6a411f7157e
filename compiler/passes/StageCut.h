// Splits a body into pipeline stages: the ops of each stage, and the values that it receives from
// its neighbours. Ops that depend only on host input and on the step state belong to every stage.
#pragma once

#include <map>
#include <vector>

#include "compiler/passes/PipelineStages.h"

namespace shardc::passes {

/// Number of ops that every stage executes.
inline constexpr int32_t kEveryStage = -1;

class StageCut {
public:
  /// Splits the body. If a sum is fused with an op of the next stage, undoes the fusion.
  StageCut(const plan::Role &role, plan::Segment &body, const PipelineStages &stages);

  int32_t stageOfOp(size_t op) const { return ofOp_[op]; }
  int32_t stageOf(plan::ValueId value) const { return ofValue_[value]; }
  /// Activations that the stage receives from its predecessor.
  const std::vector<plan::ValueId> &inputs(int32_t stage) const { return inputs_[at(stage)]; }
  /// Gradients that the stage receives from its successor.
  const std::vector<plan::ValueId> &gradients(int32_t stage) const { return gradients_[at(stage)]; }
  /// The stage's last contribution to a parameter gradient. `gradient` is the last contribution of
  /// all stages. Returns kNone if the stage has none.
  plan::ValueId contribution(plan::ValueId gradient, int32_t stage) const;
  /// The earlier contribution of the same stage that this one is added to; kNone if it is the
  /// first.
  plan::ValueId addedTo(plan::ValueId contribution, int32_t stage) const;
  /// What passes compute by the op. Backward ops on which no gradient that is sent to the preceding
  /// stage depends are of the gradients of weights.
  model::PassResult resultOf(size_t op) const { return results_[op]; }
  /// Whether stages that do not have the op pass on the step state, or the amax values, that it
  /// reads.
  bool passesState(size_t op) const { return passesState_[op] != 0; }
  /// The op as a stage executes it: it is added only to contributions of the same stage.
  plan::Op opFor(size_t op, int32_t stage) const;
  /// The observed amax values that the op extends; kNone if there are none. Each stage has its own:
  /// a segment starts with those in the stage's cell.
  plan::ValueId amaxSeenBefore(const plan::Op &op, size_t result) const;

private:
  static size_t at(int32_t stage) { return static_cast<size_t>(stage); }
  void separateSums(const PipelineStages &stages);
  void separateTallies(const plan::Role &role, const PipelineStages &stages);
  void separateReductions(const PipelineStages &stages);
  void assign(const plan::Role &role, const PipelineStages &stages);
  int32_t stageOf(const plan::Op &op, const PipelineStages &stages) const;
  void findCrossings();
  void findResults();
  plan::ValueId sumBefore(plan::ValueId gradient) const;
  void cross(const plan::Op &op, plan::ValueId value, int32_t stage);

  plan::Segment &body_;
  model::Placement placement_;
  std::map<plan::ValueId, int32_t> chunkOfTally_; ///< by sum, if it differs from the layer's chunk
  std::vector<int32_t> ofOp_, ofValue_;
  std::vector<uint8_t> isParam_;           ///< by value
  std::vector<uint8_t> isAmaxSeen_;        ///< by value
  std::vector<model::PassResult> results_; ///< by op
  std::vector<uint8_t> passesState_;       ///< by op
  std::vector<std::vector<plan::ValueId>> inputs_, gradients_;
};

} // namespace shardc::passes
