// The content of a plan's page as JSON, without layout; assets/report.js draws it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/page/Schedule.h"
#include "compiler/page/Timeline.h"
#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Json.h"

namespace shardc::page {

using Json = nlohmann::ordered_json;

/// Maximum numbers of items on a page, per plan. Smaller items are merged or left out, and the page
/// says so.
struct Limits {
  size_t blocks = 14000; ///< blocks of the timelines, over all roles
  size_t exposed = 3000; ///< intervals of exposed communication
  size_t rects = 9000;   ///< rects of the address map
  size_t points = 1200;  ///< points per series of metrics
  size_t rows = 400;     ///< rows per table
};

/// Time and memory of the recipe compiled with other settings.
struct Alternative {
  std::string what;
  std::vector<std::string> sets; ///< in the form `path=value` of `--set`
  int64_t bytes = 0;             ///< per device
  double seconds = 0;            ///< per step; 0 if the step is not predicted
};

/// A plan together with the facts that its page shows.
struct Subject {
  const plan::Plan *plan = nullptr;
  std::string title;  ///< distinguishes the plan from others on the page
  std::string source; ///< name of the file
  /// The device to predict for; null on the host, where steps are not predicted.
  const predict::Device *device = nullptr;
  int64_t deviceBytes = 0; ///< bytes that a run needs on each device
  int64_t memoryBytes = 0; ///< capacity of a device in bytes; 0 if unlimited
  bool isCompiledPlan = false;
  bool areAlternativesTried = false;
  std::vector<Alternative> alternatives; ///< common changes first, then other parallel layouts
  Json options;                          ///< result of optionsData, or null
};

/// The predicted step: for each role, and in more detail for the role that computes longest.
struct Prediction {
  std::vector<predict::StepTime> times;
  std::vector<Work> works; ///< by role
  size_t slowest = 0;
  Shares shares; ///< shares of the role `slowest`
  std::vector<OpSum> sums;
  std::vector<std::vector<Exposed>> exposed;  ///< by role
  std::vector<std::vector<DrawnPass>> passes; ///< by role

  const predict::StepTime &time() const { return times[slowest]; }
};
/// The prediction for a plan; empty on the host.
std::optional<Prediction> predictionOf(const Subject &subject);

Json planData(const Subject &subject, const std::optional<Prediction> &prediction,
              const Limits &limits);

/// A timeline and its exposed communication; names are indices into a list.
Json timelineData(const Work &work, const std::vector<Exposed> &exposed, size_t blocksMax,
                  size_t exposedMax);

/// The number of tokens in a training step.
int64_t tokensOfStep(const plan::Plan &plan);

} // namespace shardc::page
