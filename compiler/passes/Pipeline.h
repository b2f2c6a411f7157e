// Runs the passes in order, with dumps, times and checks in between. Pipeline.cpp explains the
// order.
#pragma once

#include <functional>
#include <vector>

#include "compiler/passes/Passes.h"

namespace shardc::passes {

struct PassTime {
  PassId id;
  double ms;
};

struct PipelineOptions {
  /// Disabled passes. Only fusions may be disabled.
  std::vector<PassId> disabled;
  /// Enabled passes among those that run only on request.
  std::vector<PassId> enabled;
  /// Called after each executed pass.
  std::function<void(PassId, const plan::Plan &)> after;
};

/// Whether plans are still executable without the pass.
bool isOptional(PassId id);
/// Whether the pass runs only on request, because its benefit was not measured.
bool isOnRequest(PassId id);

/// Runs the passes from `first` up to the split of the body into stages, without those that run
/// only on request, and fuses sums as the last of the body.
void finishBody(plan::Plan &plan, PassId first);

/// Transforms the logical plan of lowering into a placed plan. If the job leaves it to the
/// compiler, it first chooses whether frozen weights are sharded and what is recomputed
/// (ChooseRecompute.h). Returns the time of each pass, in order.
std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

} // namespace shardc::passes
