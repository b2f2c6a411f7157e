// Contents of a checkpoint other than tensors, from the plan's options and the step state:
// counters, schedule, arguments with Megatron's names, and optimizer settings of parameters.
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

/// The progress of a job, over all processes that have worked on it.
struct Progress {
  int64_t step = 0;
  int64_t applied = 0; ///< updates that the schedule counts, and moments if countOffsets is 0
  int64_t scheduledSamples = 0; ///< samples of these updates, for schedules that count samples
  float lr = 0, decoupledLr = 0, weightDecay = 0; ///< of the last step
  std::optional<LossScaler> lossScaler;           ///< not set: the state of a new run
  std::vector<float> amaxHistory; ///< of rank 0, if the plan has such a cell; empty in a new run
  std::vector<float> expertBias;  ///< content of the expert bias cell, on the rank that saves it
  int64_t consumedTrainSamples = 0, consumedValidSamples = 0;
  int64_t skippedTrainSamples = 0; ///< samples of skipped steps
  double floatingPointOperations = 0;
  std::string kernels; ///< of the backend (hal::Backend::kernelsText)
  /// For each parameter, by index in Plan::params, the number of updates in its moments minus the
  /// number in the schedule; negative if the moments began later. Empty: all 0.
  std::vector<int64_t> countOffsets;

  /// The number of updates in a parameter's moments.
  int64_t updatesOf(size_t param) const {
    return applied + (countOffsets.empty() ? 0 : countOffsets[param]);
  }
};

/// The name under which checkpoints store Progress::kernels among Megatron's arguments.
inline constexpr std::string_view kKernelsArgument = "shardc_kernels";

/// The progress after further steps: `state` is the state after the last step, and `begin` the
/// progress with which this process began.
Progress progressAfter(const plan::Plan &plan, const Progress &begin, const StepState &state);

/// Global batches of the plan's size that were consumed since the first batch of the plan.
int64_t batchesConsumed(const plan::Plan &plan, const Progress &progress);

checkpoint::RunState runStateOf(const plan::Plan &plan, const Progress &progress);
/// The loss scale in a run's checkpoint; nothing if it is not dynamic or unknown.
std::optional<LossScaler> lossScalerOf(const checkpoint::RunState &state);
/// The cell of a role with the amax history; null if the plan has none. All ranks have the same
/// history, but roles may store it at different places.
const plan::Cell *amaxHistoryOf(const plan::Plan &plan, uint32_t role = 0);
/// The cell of a role with the expert bias: one row per layer with experts of any stage, followed
/// by zeros. Stages without experts have no such cell. All other stages have the same content.
const plan::Cell *expertBiasOf(const plan::Plan &plan, uint32_t role);
/// The first rank with such a cell, which saves it; nothing if no rank has one.
std::optional<int64_t> rankWithExpertBias(const plan::Plan &plan);
/// Upstream's buffer with the expert bias of a layer, f32[experts].
struct ExpertBuffer {
  std::string name; ///< such as `decoder.layers.3.mlp.router.expert_bias`
  int64_t experts = 0;
};
/// The buffers of expert biases of a plan, in the order of rows in its cells.
std::vector<ExpertBuffer> expertBuffersOf(const plan::Plan &plan);
/// The name of the amax history in checkpoints. Upstream's loaders ignore it, since no tensor of
/// theirs has this name.
inline constexpr const char *kAmaxHistory = "decoder._extra_state.amax_history";
/// Adds the amax history to the rank's save if there is one.
Status addAmaxHistory(const plan::Plan &plan, const Progress &progress,
                      checkpoint::RankWriter &writer);
/// The optimizer group of a parameter.
checkpoint::GroupKey groupKeyOf(const plan::Plan &plan, const plan::Param &param);
/// The optimizer settings of the parameter with this index in Plan::params.
checkpoint::GroupMeta groupMetaOf(const plan::Plan &plan, size_t param, const Progress &progress);
/// The precision that Megatron FSDP's names imply: Half if Megatron wraps the model of such a run
/// in its module for bf16 and fp16.
checkpoint::FsdpPrecision fsdpPrecisionOf(const plan::Plan &plan);
/// The effective options as the text of `run_config.yaml`, with one section per first path segment.
std::string runConfigText(const plan::Plan &plan);

} // namespace shardc::save
