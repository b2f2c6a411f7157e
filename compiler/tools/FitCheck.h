// Checks whether a placed plan fits its device, and searches for changes that make it fit by
// compiling each.
#pragma once

#include "compiler/tools/Session.h"

namespace shardc::tools {

/// The plan of the configuration, after all passes.
plan::Plan placedPlan(const config::Config &config, const SourceManager &sources);

/// Compiles the recipe with further settings and says nothing; nothing if that recipe has errors or
/// cannot be executed.
std::optional<plan::Plan> planWith(const CommonOptions &common,
                                   const std::vector<std::string> &sets);

/// Bytes that a run of the plan takes on each device: arenas, and what lies beside them.
int64_t deviceBytesOf(const plan::Plan &plan);

/// Reports a plan that does not fit as an error with the bytes by purpose and the changes that make
/// it fit. True if it fits.
bool reportFit(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
               const CommonOptions &common);

/// A change of the recipe, as `--set` arguments, and what the plan takes with it.
struct FitChange {
  std::vector<std::string> sets;
  std::string what;
  int64_t bytes = 0;
};

/// Compiles the usual changes (smaller micro batch, recomputation, the next strategy, more ranks)
/// and returns those that can be compiled.
std::vector<FitChange> tryChanges(const config::Config &config, const CommonOptions &common);

} // namespace shardc::tools
