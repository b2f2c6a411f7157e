// Runs the passes in order, with dumps, timings and checks between them. Passes.def explains the
// order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/passes/Passes.h"

namespace shardc::passes {

struct PassTime {
  PassId id;
  double ms;
};

struct RecomputeCosts; // ChooseRecompute.cpp

/// Creates a cache of layer costs for PipelineOptions::costs. Plans may share it if their layers
/// have the same ops.
std::shared_ptr<RecomputeCosts> newRecomputeCosts();

/// What callers may change about a run of all passes.
struct PipelineOptions {
  /// Disabled passes. Only fusions may be disabled.
  std::vector<PassId> disabled;
  /// Enabled passes among those that run only on request.
  std::vector<PassId> enabled;
  /// Called after each executed pass.
  std::function<void(PassId, const plan::Plan &)> after;
  /// Cache of layer costs by what they recompute; each compiled plan reads and extends it. May be
  /// null.
  std::shared_ptr<RecomputeCosts> costs = nullptr;
  /// Asked while recomputation is chosen, before most plans are placed: whether a plan is wanted
  /// whose step takes these seconds without recomputation, which adds at least `added` to a
  /// microbatch of each stage. If not, the pipeline ends without a plan, and the job's choice stays
  /// open. May be null.
  std::function<bool(double seconds, const std::vector<double> &added)> isWanted = nullptr;
};

/// Whether a plan stays executable if the pass is left out.
bool isOptional(PassId id);
/// Whether the pass runs only on request.
bool isOnRequest(PassId id);

/// Runs the passes from `first` up to the split of the body into stages, except those that run only
/// on request, and FuseSums as the last one.
void finishBody(plan::Plan &plan, PassId first);

/// Runs the passes from `first` to before `end`, or to the last one. Returns the time of each pass.
std::vector<PassTime> runPasses(plan::Plan &plan, const PipelineOptions &options, Notes &notes,
                                PassId first, std::optional<PassId> end);

/// Transforms the logical plan of lowering into a placed plan. If the job leaves it to the
/// compiler, it first chooses whether frozen weights are sharded and what is recomputed
/// (ChooseRecompute.h). Returns the time of each pass, in order; none if the plan is not wanted.
std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

/// The number of plans that this process has placed so far: what the time of a command depends on.
int64_t placedPlans();

} // namespace shardc::passes
