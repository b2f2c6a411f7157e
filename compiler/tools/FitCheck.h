// Checks whether a placed plan fits its device, and searches for changes that make it fit by
// compiling each of them.
#pragma once

#include "compiler/passes/Pipeline.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {

/// The plan of the configuration, after all passes.
plan::Plan placedPlan(const config::Config &config, const SourceManager &sources,
                      const passes::PipelineOptions &options = {});

/// Compiles the recipe with additional settings, without messages. Empty if that recipe has errors
/// or cannot be executed.
std::optional<plan::Plan> planWith(const CommonOptions &common,
                                   const std::vector<std::string> &sets);

/// Whether the compiler chooses what is recomputed, for which it places many plans.
bool choosesRecompute(const config::Config &config);

/// Settings that replace this choice: the recipe recomputes each layer, or nothing.
std::vector<std::string> recomputing(bool all);

/// Bytes that the plan needs on each device: arenas and overheads.
int64_t deviceBytesOf(const plan::Plan &plan);

/// Reports a plan that does not fit as an error, with memory by purpose and the changes that make
/// it fit. Returns whether it fits.
bool reportFit(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
               const CommonOptions &common);

/// A change of the recipe as `--set` arguments, and the memory of the changed plan.
struct FitChange {
  std::vector<std::string> sets;
  std::string what;
  int64_t bytes = 0;
};

/// Compiles common changes (smaller micro batch, recomputation, the next sharding strategy, more
/// ranks) and returns those that compile.
std::vector<FitChange> tryChanges(const config::Config &config, const CommonOptions &common);

} // namespace shardc::tools
