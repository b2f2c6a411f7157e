#include "runtime/tools/Elastic.h"

#include <algorithm>

#include "runtime/base/ElasticSizes.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/tools/Restarts.h"

namespace shardc::tools {
namespace {

std::string metricsLine(const launch::CrewChange &change) {
  nlohmann::ordered_json line;
  line["ranks"] = change.now.size();
  line["ranks_before"] = change.before.size();
  line["places"] = change.now;
  line["step"] = std::max<int64_t>(change.savedStep, 0);
  line["from_save"] = change.savedStep >= 0;
  line["seconds_lost"] = change.secondsLost;
  line["why"] = change.why;
  return toText(line) + "\n";
}

} // namespace

std::vector<std::span<const plan::Plan>> plansBySize(std::span<const plan::Plan> plans) {
  std::vector<std::span<const plan::Plan>> sizes;
  for (size_t begin = 0, end = 0; begin < plans.size(); begin = end) {
    while (end < plans.size() && plans[end].worldSize() == plans[begin].worldSize())
      ++end;
    sizes.push_back(plans.subspan(begin, end - begin));
  }
  return sizes;
}

Status checkSizes(std::span<const plan::Plan> plans, const RunToolOptions &options) {
  std::vector<int64_t> there;
  for (std::span<const plan::Plan> size : plansBySize(plans))
    there.push_back(size.front().worldSize());
  bool isAsked = !options.elastic.empty();
  if (isAsked ? there == options.elastic : there.size() == 1)
    return Status::ok();
  return makeStatus(report::ElasticSizesDiffer, elasticText(there),
                    isAsked ? elasticText(options.elastic) : "not given");
}

std::optional<Report> refuseElastic(const RunToolOptions &options, Launcher launcher) {
  if (!options.isElastic())
    return std::nullopt;
  if (options.restarts == 0)
    return makeReport(report::ElasticNeedsRestarts);
  if (launcher == Launcher::OpenMpi)
    return makeReport(report::ElasticUnderMpirun);
  return std::nullopt;
}

launch::ElasticOptions elasticOptionsOf(const RunToolOptions &options, int64_t ranks,
                                        double timeoutSeconds) {
  if (!options.isElastic())
    return {};
  return {.sizes = options.elastic.empty() ? std::vector{ranks} : options.elastic,
          .spares = options.spares,
          .waitSeconds = timeoutSeconds};
}

std::function<void(const launch::CrewChange &)> noteCrewsOf(const plan::Plan &plan,
                                                            const RunToolOptions &options) {
  return [console = options.console, metrics = options.metrics, folder = plan.job.checkpoint.save,
          hasMemory = plan.job.checkpoint.inMemoryInterval > 0](const launch::CrewChange &change) {
    std::string from = whereFrom(change.savedStep, folder, hasMemory);
    console.emit(change.now.size() == change.before.size()
                     ? makeReport(report::PlacesChanged, change.now.size(), from, change.why,
                                  change.secondsLost)
                     : makeReport(report::SizeChanged, change.now.size(), change.before.size(),
                                  from, change.why, change.secondsLost));
    if (metrics.empty())
      return;
    if (Status status = addMetricsLine(metrics, metricsLine(change)); !status.isOk())
      console.emit(status.report());
  };
}

} // namespace shardc::tools
