// The search of `shardc tune`: in rounds over the kinds of layouts, those of the least time first,
// each compiled, until no other one can be faster than what was found. Which layouts are compiled
// depends on no clock and no number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "compiler/predict/StepTime.h"
#include "compiler/tools/Session.h"
#include "compiler/tools/TuneBound.h"

namespace shardc::tools {

/// A layout that was compiled and can run.
struct Tuned {
  Layout layout;
  std::pair<size_t, size_t> order; ///< of its choices in TuneKnobs.def: the earlier of two equals
  Bound bound;                     ///< the highest that was known before it was compiled
  int64_t bytes = 0;               ///< of the device, as deviceBytesOf says
  predict::StepTime time;
  double recomputed = 0;            ///< seconds in which an average stage recomputes
  std::string stages;               ///< the layout of a balanced pipeline
  std::vector<int64_t> activations; ///< bytes of each stage, which no sharding changes
};

struct TuneRequest {
  CommonOptions common;
  std::optional<Tuned> own; ///< the recipe itself, if it fits: what is searched is to be faster
  int64_t memoryBytes = 0;  ///< of a device; 0: any
  size_t threads = 1;
  bool prunes = true;     ///< otherwise every layout is compiled
  size_t most = SIZE_MAX; ///< layouts that are compiled
  std::function<bool()> isStopped = [] { return false; };
  /// Called between batches, with the numbers of layouts compiled and left, and the best one.
  std::function<void(size_t, size_t, const Tuned *)> onProgress = [](size_t, size_t,
                                                                     const Tuned *) {};
};

struct TuneResult {
  std::vector<Tuned>
      found; ///< those that fit, the fastest first; the recipe itself if none is faster
  std::vector<Tuned> tooLarge; ///< those that were compiled and do not fit
  size_t all = 0;              ///< layouts: those compiled, and the others
  size_t compiled = 0;         ///< fit, too large, or refused
  size_t fit = 0;
  size_t refusedCompiled = 0; ///< by a rule, or as more graphs than a rank may capture
  // Of those that were not compiled:
  size_t beyondMemory = 0; ///< by their bound
  size_t refused = 0;      ///< by a rule, of which no layout with the same body or division is free
  size_t slower = 0;       ///< their least time is more than the best one's, or one was the same
  size_t unseen = 0;       ///< since the search was stopped or had compiled enough
  bool isStopped = false;
  /// Layouts that were refused, by the id of the rule; "not-executed" if no op implements them.
  std::map<std::string, size_t> refusals;

  /// Whether a layout that was not compiled could be faster.
  bool isPartial() const { return unseen > 0; }
};

TuneResult search(const TuneSpace &space, const TuneRequest &request);

/// Compiles one set of settings; nothing if a rule refuses it, or the runtime would: `why` is then
/// the id of the rule.
std::optional<Tuned> evaluate(const CommonOptions &common, const std::vector<std::string> &sets,
                              std::string &why);

} // namespace shardc::tools
