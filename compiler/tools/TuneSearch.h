// The search of `shardc tune`. In rounds over the kinds of layouts, in order of estimated time, it
// compiles layouts until the estimate of each other one is above the best step, by as much as the
// compiled plans show estimates to be wrong. Which layouts are compiled depends neither on a clock
// nor on the number of threads.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "compiler/passes/Pipeline.h"
#include "compiler/predict/StepTime.h"
#include "compiler/tools/Session.h"
#include "compiler/tools/TuneEstimate.h"

namespace shardc::tools {

/// A compiled, executable layout.
struct Tuned {
  Layout layout;
  std::pair<size_t, size_t> order; ///< position of its choices in TuneKnobs.def; breaks ties
  Estimate estimate;               ///< before compilation
  int64_t bytes = 0;               ///< on the device, as by deviceBytesOf()
  predict::StepTime time;
  double recomputed = 0;          ///< recomputation time of an average stage, in seconds
  bool gathersLayersWhole = true; ///< layers have one block each
  std::string stages;             ///< the layout of a balanced pipeline
};

/// What to search, with which limits. `isStopped` is polled; a stopped search returns what it
/// found.
struct TuneRequest {
  CommonOptions common;
  std::optional<Tuned> own; ///< the recipe itself, if it fits
  int64_t memoryBytes = 0;  ///< device memory; 0: unlimited
  size_t threads = 1;
  bool prunes = true;     ///< omit layouts by their estimates; false: compile every layout
  size_t most = SIZE_MAX; ///< limit on the number of compiled layouts
  std::function<bool()> isStopped = [] { return false; };
  /// Called between batches with the numbers of compiled and remaining layouts, and the best one.
  std::function<void(size_t, size_t, const Tuned *)> onProgress = [](size_t, size_t,
                                                                     const Tuned *) {};
};

/// The layouts that the search compiled, and the numbers of all others by reason.
struct TuneResult {
  std::vector<Tuned>
      found; ///< those that fit, the fastest first; the recipe itself if none is faster
  std::vector<Tuned> tooLarge; ///< compiled layouts that do not fit
  size_t all = 0;              ///< number of layouts in total
  size_t compiled = 0;         ///< compiled: fit, too large, refused or given up
  size_t fit = 0;
  size_t refusedCompiled = 0; ///< refused by a rule, or by the limit on CUDA graphs
  size_t givenUp = 0; ///< given up while recomputation was chosen: too slow even with the least
  // Layouts that were not compiled:
  size_t beyondMemory = 0; ///< estimated memory exceeds the device
  int64_t leastBeyond = std::numeric_limits<int64_t>::max(); ///< the least of these estimates
  size_t refused = 0; ///< refused by a rule that every layout with this body or split violates
  size_t slower = 0;  ///< by its estimate, or as another layout
  size_t unseen = 0;  ///< not reached, because the search was stopped or hit its limit
  bool isStopped = false;
  /// Numbers of refused layouts by rule id; "not-executed" for unsupported ops.
  std::map<std::string, size_t> refusals;

  /// Whether a layout that was not compiled could be faster.
  bool isPartial() const { return unseen > 0; }
};

/// Searches the space for the fastest layout that fits into `memoryBytes`.
TuneResult search(const TuneSpace &space, const TuneRequest &request);

/// Compiles one set of settings. Nothing if a rule or the runtime refuses it; `why` is then the
/// rule's id, and empty if `options` does not want the plan.
std::optional<Tuned> evaluate(const CommonOptions &common, const std::vector<std::string> &sets,
                              std::string &why, const passes::PipelineOptions &options = {});

} // namespace shardc::tools
