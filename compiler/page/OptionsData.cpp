#include "compiler/page/OptionsData.h"

#include <algorithm>
#include <set>

#include "compiler/config/Explain.h"
#include "compiler/config/Rules.h"

namespace shardc::page {
namespace {

bool differ(const std::vector<std::string> &values) {
  return std::any_of(values.begin(), values.end(),
                     [&](const std::string &value) { return value != values.front(); });
}

void addIfDiffering(Json &rows, const std::string &path, const std::vector<std::string> &values) {
  if (differ(values))
    rows.push_back({{"path", path}, {"values", values}});
}

} // namespace

Json optionsData(const config::Config &config, const SourceManager &sources) {
  Json rows = Json::array();
  for (const config::OptionInfo &option : config::options()) {
    const config::Setting &setting = config[option.opt];
    if (!config.has(option.opt) || setting.from.origin == config::Origin::Default)
      continue;
    std::string value = config::toRecipeText(config, option.opt);
    std::string standard = option.defaultText.str();
    if (value == standard)
      continue;
    Json row = {{"path", option.path.str()},
                {"value", value},
                {"default", standard},
                {"from", config::describeOrigin(config, sources, option.opt)},
                {"doc", config::summary(option).str()}};
    if (setting.from.rule)
      row["reason"] = config::info(*setting.from.rule).reason.str();
    rows.push_back(std::move(row));
  }
  return rows;
}

Json differingOptions(const std::vector<config::Config> &configs) {
  Json rows = Json::array();
  for (const config::OptionInfo &option : config::options()) {
    std::vector<std::string> values;
    for (const config::Config &config : configs)
      values.push_back(config.has(option.opt) ? config::toRecipeText(config, option.opt) : "none");
    addIfDiffering(rows, option.path.str(), values);
  }
  return rows;
}

Json differingJobs(const std::vector<const plan::Plan *> &plans) {
  std::vector<std::map<std::string, std::string>> jobs;
  std::set<std::string> paths;
  for (const plan::Plan *plan : plans) {
    jobs.emplace_back();
    for (const auto &[path, value] : plan->job.entries()) {
      if (llvm::StringRef(path).startswith("derived.")) // follows from the others
        continue;
      paths.insert(path);
      jobs.back()[path] = toText(std::visit([](const auto &held) { return Json(held); }, value));
    }
  }
  Json rows = Json::array();
  for (const std::string &path : paths) {
    bool isSwitch = std::ranges::any_of( // a plan omits switches that are off
        jobs, [&](const auto &job) { return job.count(path) > 0 && job.at(path) == "true"; });
    std::vector<std::string> values;
    for (const std::map<std::string, std::string> &job : jobs)
      values.push_back(job.count(path) > 0 ? job.at(path) : isSwitch ? "false" : "none");
    addIfDiffering(rows, path, values);
  }
  return rows;
}

} // namespace shardc::page
