// The search of `shardc tune`: in rounds over the kinds of layouts, those of the least time first,
// each compiled, until no other one can be faster than what was found. Which layouts are compiled
// depends on no clock and no number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "compiler/predict/StepTime.h"
#include "compiler/tools/Session.h"
#include "compiler/tools/TuneBound.h"

namespace shardc::tools {

/// A layout that was compiled and can run.
struct Tuned {
  Layout layout;
  std::pair<size_t, size_t> order; ///< of its choices in TuneKnobs.def: the earlier of two equals
  Bound bound;
  int64_t bytes = 0; ///< of the device, as deviceBytesOf says
  predict::StepTime time;
  double recomputed = 0;            ///< seconds that an average stage makes activations again
  std::string stages;               ///< the layout of a balanced pipeline
  std::vector<int64_t> besideState; ///< bytes of each stage that no sharding changes
};

struct TuneRequest {
  CommonOptions common;
  int64_t memoryBytes = 0; ///< of a device; 0: any
  size_t threads = 1;
  bool prunes = true;     ///< otherwise every layout is compiled
  size_t most = SIZE_MAX; ///< layouts that are compiled
  std::function<bool()> isStopped = [] { return false; };
  /// Called between batches, with the numbers of layouts compiled and left, and the best one.
  std::function<void(size_t, size_t, const Tuned *)> onProgress = [](size_t, size_t,
                                                                     const Tuned *) {};
};

struct TuneResult {
  std::vector<Tuned> found; ///< those that fit, the fastest first
  size_t all = 0;           ///< layouts
  size_t beyondMemory = 0;  ///< by their bound, or once compiled
  size_t refused = 0;       ///< by a rule, or as more graphs than a rank may capture
  size_t compiled = 0;
  size_t slower = 0;      ///< not compiled: their least time is more than the best one's
  size_t unseen = 0;      ///< not compiled, since the search was stopped or had compiled enough
  size_t wrongBounds = 0; ///< of those that were compiled, above what the plan takes
  int64_t leastBytes = INT64_MAX; ///< of those that were compiled and do not fit

  /// Whether a layout that was not compiled could be faster.
  bool isPartial() const { return unseen > 0; }
};

TuneResult search(const TuneSpace &space, const TuneRequest &request);

/// Compiles one set of settings; nothing if a rule refuses it, or the runtime would.
std::optional<Tuned> evaluate(const CommonOptions &common, const std::vector<std::string> &sets);

} // namespace shardc::tools
