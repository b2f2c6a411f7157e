#include "compiler/tools/FitSplits.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "compiler/tools/FitCheck.h"

namespace shardc::tools {
namespace {

using config::Opt;

constexpr int64_t kStagesMax = 8; ///< maximum to try; the recipe's own may be larger

Split measured(Split split, const plan::Plan &plan) {
  split.bytes = deviceBytesOf(plan);
  split.seconds = predictedStep(plan).value_or(predict::StepTime()).step;
  return split;
}

std::vector<std::string> settingsOf(const Split &split, const Split &own, bool ownRows) {
  std::vector<std::string> sets;
  auto add = [&](const char *path, auto value, auto before) {
    if (value != before)
      sets.push_back(fmt::format("{}={}", path, value));
  };
  add("model.tensor_model_parallel_size", split.tensor, own.tensor);
  add("model.sequence_parallel", split.tensor > 1, ownRows);
  add("model.context_parallel_size", split.context, own.context);
  add("model.pipeline_model_parallel_size", split.pipeline, own.pipeline);
  add("model.expert_model_parallel_size", split.expert, own.expert);
  return sets;
}

/// Sizes of expert parallelism to try: powers of two that divide the number of experts, and the
/// recipe's own.
std::vector<int64_t> expertSizes(const config::Config &config, const Split &own) {
  std::vector<int64_t> sizes = {own.expert};
  if (!config.has(Opt::ModelNumMoeExperts))
    return sizes;
  int64_t experts = config.getInt(Opt::ModelNumMoeExperts);
  for (int64_t size = 1; size <= experts && experts % size == 0; size *= 2)
    if (size != own.expert)
      sizes.push_back(size);
  return sizes;
}

/// The splits other than the recipe's own, each with its settings.
std::vector<Split> candidates(const config::Config &config, const Split &own) {
  const config::Derived &d = config.derived();
  bool ownRows = config.isOn(Opt::ModelSequenceParallel);
  auto sizes = [](const Split &split) {
    return std::tuple(split.tensor, split.context, split.pipeline);
  };
  auto differs = [&](const Split &split) {
    return std::pair(sizes(split) != sizes(own), split.expert != own.expert);
  };
  std::vector<int64_t> experts = expertSizes(config, own);
  std::vector<Split> splits;
  int64_t inNode = std::max<int64_t>(d.gpusPerNode, 1);
  for (int64_t tensor = 1; tensor <= inNode; tensor *= 2)
    for (int64_t context = 1; tensor * context <= inNode; context *= 2)
      for (int64_t stages = 1; stages <= std::min(kStagesMax, d.numLayers); stages *= 2) {
        if (d.worldSize % (tensor * context * stages) != 0)
          continue;
        for (int64_t expert : experts) {
          Split split{tensor, context, stages, d.worldSize / (tensor * context * stages), expert};
          if (differs(split) == std::pair(false, false) || d.worldSize % (stages * expert) != 0)
            continue;
          split.sets = settingsOf(split, own, ownRows);
          splits.push_back(std::move(split));
        }
      }
  std::ranges::stable_sort(splits, {}, differs);
  return splits;
}

} // namespace

Splits trySplits(const config::Config &config, const plan::Plan &plan, const CommonOptions &common,
                 const std::function<bool(size_t tried, size_t all)> &goesOn) {
  const config::Derived &d = config.derived();
  Split own{d.tensorParallel, d.contextParallel, d.pipelineParallel, d.dataParallel,
            d.expertParallel};
  Splits splits{{measured(own, plan)}};
  std::vector<Split> others = candidates(config, own);
  for (size_t i = 0; i < others.size(); ++i) {
    if (!goesOn(i, others.size())) {
      splits.numUntried = others.size() - i;
      break;
    }
    if (std::optional<plan::Plan> with = planWith(common, others[i].sets))
      splits.all.push_back(measured(std::move(others[i]), *with));
  }
  std::ranges::sort(splits.all.begin() + 1, splits.all.end(), {},
                    [](const Split &split) { return std::pair(split.seconds, split.bytes); });
  return splits;
}

} // namespace shardc::tools
