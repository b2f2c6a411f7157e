#include "compiler/tools/FitSplits.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "compiler/tools/FitCheck.h"

namespace shardc::tools {
namespace {

constexpr int64_t kStagesMax = 8; ///< that are tried; the recipe's own may be more

Split measured(Split split, const plan::Plan &plan) {
  split.bytes = deviceBytesOf(plan);
  split.seconds = predictedStep(plan).value_or(predict::StepTime()).step;
  return split;
}

std::vector<std::string> settingsOf(const Split &split) {
  return {fmt::format("model.tensor_model_parallel_size={}", split.tensor),
          fmt::format("model.sequence_parallel={}", split.tensor > 1),
          fmt::format("model.context_parallel_size={}", split.context),
          fmt::format("model.pipeline_model_parallel_size={}", split.pipeline)};
}

} // namespace

std::vector<Split> trySplits(const config::Config &config, const plan::Plan &plan,
                             const CommonOptions &common) {
  const config::Derived &d = config.derived();
  Split own{d.tensorParallel, d.contextParallel, d.pipelineParallel, d.dataParallel};
  std::vector<Split> splits = {measured(own, plan)};
  auto sizes = [](const Split &split) {
    return std::tuple(split.tensor, split.context, split.pipeline);
  };
  int64_t inNode = std::max<int64_t>(d.gpusPerNode, 1);
  for (int64_t tensor = 1; tensor <= inNode; tensor *= 2)
    for (int64_t context = 1; tensor * context <= inNode; context *= 2)
      for (int64_t stages = 1; stages <= std::min(kStagesMax, d.numLayers); stages *= 2) {
        Split split{tensor, context, stages, d.worldSize / (tensor * context * stages)};
        if (d.worldSize % (tensor * context * stages) != 0 || sizes(split) == sizes(own))
          continue;
        if (std::optional<plan::Plan> with = planWith(common, settingsOf(split)))
          splits.push_back(measured(split, *with));
      }
  std::ranges::sort(splits.begin() + 1, splits.end(), {},
                    [](const Split &split) { return std::pair(split.seconds, split.bytes); });
  return splits;
}

} // namespace shardc::tools
