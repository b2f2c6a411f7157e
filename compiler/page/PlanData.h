// The content of a plan's page as JSON: shapes and figures only, no layout. assets/report.js draws
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/page/Timeline.h"
#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Json.h"

namespace shardc::page {

using Json = nlohmann::ordered_json;

/// The maximum numbers of items that a page has for one plan. Smaller items are aggregated or left
/// out, and the page says so.
struct Limits {
  size_t blocks = 14000; ///< of timelines, of all roles together
  size_t exposed = 3000; ///< stretches of exposed communication
  size_t rects = 9000;   ///< of the address map
  size_t points = 1200;  ///< of a series of metrics
  size_t rows = 400;     ///< of a table
};

/// Time and memory of another setting, compiled.
struct Alternative {
  std::string what;
  std::vector<std::string> sets; ///< as `--set` takes them
  int64_t bytes = 0;             ///< of a device
  double seconds = 0;            ///< of a step; 0 if none is predicted
};

/// A plan with what is known of it.
struct Subject {
  const plan::Plan *plan = nullptr;
  std::string title;  ///< what tells it from the others of the page
  std::string source; ///< the file
  /// Null where no step is predicted: on the host.
  const predict::Device *device = nullptr;
  int64_t deviceBytes = 0; ///< that a run takes of each device
  int64_t memoryBytes = 0; ///< of the device; 0: unlimited
  bool isCompiledPlan = false;
  bool areAlternativesTried = false;
  std::vector<Alternative> alternatives; ///< the usual changes, then other splits
  Json options;                          ///< optionsData, or null
};

/// The step as predicted: of each role, and of the one that computes longest.
struct Prediction {
  std::vector<predict::StepTime> times;
  std::vector<Work> works; ///< by role
  size_t slowest = 0;
  Shares shares; ///< of the slowest
  std::vector<OpSum> sums;
  std::vector<std::vector<Exposed>> exposed; ///< by role

  const predict::StepTime &time() const { return times[slowest]; }
};
/// The prediction for a plan; nothing on the host.
std::optional<Prediction> predictionOf(const Subject &subject);

Json planData(const Subject &subject, const std::optional<Prediction> &prediction,
              const Limits &limits);

/// A timeline with its exposed communication, names as indices in lists.
Json timelineData(const Work &work, const std::vector<Exposed> &exposed, size_t blocksMax,
                  size_t exposedMax);

/// Tokens that a step trains on.
int64_t tokensOfStep(const plan::Plan &plan);

} // namespace shardc::page
