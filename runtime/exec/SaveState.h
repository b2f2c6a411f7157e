// What a checkpoint says of a run beside its tensors, made from the plan's options and the step
// state: counters, schedule, arguments as Megatron names them, optimizer settings of parameters.
#pragma once

#include <string>

#include "runtime/base/StepState.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// How far a job has come, over all processes that worked on it.
struct Progress {
  int64_t step = 0;
  int64_t applied = 0; ///< updates that the schedule and the moments count
  float lr = 0;        ///< of the last step
  int64_t consumedTrainSamples = 0, consumedValidSamples = 0;
  double floatingPointOperations = 0;
};

/// The progress after further steps: `state` is the last one's, `begin` what this process began
/// with.
Progress progressAfter(const plan::Plan &plan, const Progress &begin, const StepState &state);

checkpoint::RunState runStateOf(const plan::Plan &plan, const Progress &progress);
checkpoint::GroupMeta groupMetaOf(const plan::Plan &plan, const plan::Param &param,
                                  const Progress &progress);
/// The effective options as `run_config.yaml`, a section for each first segment of their paths.
std::string runConfigText(const plan::Plan &plan);

} // namespace shardc::exec
