// The order of the passes with its reasons, and running them with dumps, times and checks in
// between.
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
  /// Passes that are disabled. Only fusions can be; the others are required.
  std::vector<PassId> disabled;
  /// Enabled passes of those that run only on request.
  std::vector<PassId> enabled;
  /// Called after each pass that ran.
  std::function<void(PassId, const plan::Plan &)> after;
};

/// Whether the pipeline still produces an executable plan without the pass.
bool isOptional(PassId id);
/// Whether it runs only on request, because its benefit has not been measured.
bool isOnRequest(PassId id);

/// Runs the passes from `first` on until the body would be cut into stages, but those on request.
void finishBody(plan::Plan &plan, PassId first);

/// Turns the logical plan from lowering into a placed one. Where the job leaves it to the compiler
/// whether frozen weights are divided, and what is recomputed, that is chosen first
/// (ChooseRecompute.h). Returns the time of each pass in
/// order.
std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

} // namespace shardc::passes
