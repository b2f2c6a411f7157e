// The order of the passes and why it is this one; running them with dumps, times and checks in
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
  /// Passes that are left out; fusions only, the others are needed.
  std::vector<PassId> disabled;
  /// Of those that run on request alone.
  std::vector<PassId> enabled;
  /// Called after each pass that ran.
  std::function<void(PassId, const plan::Plan &)> after;
};

/// Whether the pipeline still makes a plan that can run without the pass.
bool isOptional(PassId id);
/// Whether it runs only where it is asked for, because what it brings has not been measured.
bool isOnRequest(PassId id);

/// From the logical plan that lowering makes to a placed one. Returns the time of each pass in
/// order.
std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

} // namespace shardc::passes
