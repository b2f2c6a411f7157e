// Contents of a checkpoint besides its tensors, from the plan's options and the step state:
// counters, schedule, arguments under Megatron's names, optimizer settings of parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/StepState.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/GroupOrder.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

/// The state of a dynamic loss scale.
struct LossScaler {
  float scale = 0;
  int32_t growthTracker = 0, hysteresisTracker = 0;
};

/// How far a job has come, over all processes that worked on it.
struct Progress {
  int64_t step = 0;
  int64_t applied = 0; ///< updates that the schedule counts, and the moments but for countOffsets
  int64_t scheduledSamples = 0; ///< of these updates, where the schedule counts samples instead
  float lr = 0, decoupledLr = 0, weightDecay = 0; ///< of the last step
  std::optional<LossScaler> lossScaler;           ///< none: that of a new run
  std::vector<float> amaxHistory; ///< of plans that keep one, on the first rank; empty: a new run's
  std::vector<float> expertBias;  ///< the content of such a cell, on the rank that saves it
  int64_t consumedTrainSamples = 0, consumedValidSamples = 0;
  int64_t skippedTrainSamples = 0; ///< of steps that were skipped
  double floatingPointOperations = 0;
  /// For each parameter, by index in Plan::params, the number of updates in its moments minus that
  /// of the schedule; negative if the moments began later. Empty: all 0.
  std::vector<int64_t> countOffsets;

  /// Updates that a parameter's moments count.
  int64_t updatesOf(size_t param) const {
    return applied + (countOffsets.empty() ? 0 : countOffsets[param]);
  }
};

/// The progress after further steps: `state` is the last one's, `begin` what this process began
/// with.
Progress progressAfter(const plan::Plan &plan, const Progress &begin, const StepState &state);

/// Global batches that were consumed since the first one of the plan, of its size.
int64_t batchesConsumed(const plan::Plan &plan, const Progress &progress);

checkpoint::RunState runStateOf(const plan::Plan &plan, const Progress &progress);
/// The loss scale in a run's checkpoint; nothing if it is not dynamic or not known.
std::optional<LossScaler> lossScalerOf(const checkpoint::RunState &state);
/// The cell of a role with the amax history; null if the plan has none. All ranks have the
/// same history, each role in a place of its own.
const plan::Cell *amaxHistoryOf(const plan::Plan &plan, uint32_t role = 0);
/// The cell of a role with the bias on the choice of experts: a row for each layer with experts of
/// any stage, then zeros. Stages without experts have no such cell; all others have the same.
const plan::Cell *expertBiasOf(const plan::Plan &plan, uint32_t role);
/// The first rank with such a cell, which saves it; none if no rank has one.
std::optional<int64_t> rankWithExpertBias(const plan::Plan &plan);
/// Upstream's buffer of a layer with experts, f32[experts].
struct ExpertBuffer {
  std::string name; ///< `decoder.layers.3.mlp.router.expert_bias`
  int64_t experts = 0;
};
/// The buffers of expert biases of a plan, by rows of its cells.
std::vector<ExpertBuffer> expertBuffersOf(const plan::Plan &plan);
/// The name of this history in checkpoints. Loaders upstream skip it: no tensor of theirs is the
/// same.
inline constexpr const char *kAmaxHistory = "decoder._extra_state.amax_history";
/// Adds the amax history, if there is one, to the rank's save.
Status addAmaxHistory(const plan::Plan &plan, const Progress &progress,
                      checkpoint::RankWriter &writer);
/// The optimizer group of a parameter.
checkpoint::GroupKey groupKeyOf(const plan::Plan &plan, const plan::Param &param);
/// The optimizer settings of the parameter with this index in Plan::params.
checkpoint::GroupMeta groupMetaOf(const plan::Plan &plan, size_t param, const Progress &progress);
/// Whether Megatron has the model of such a run in its module of bf16 and fp16.
checkpoint::FsdpPrecision fsdpPrecisionOf(const plan::Plan &plan);
/// The effective options as `run_config.yaml`, a section for each first segment of their paths.
std::string runConfigText(const plan::Plan &plan);

} // namespace shardc::save
