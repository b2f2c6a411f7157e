#include "compiler/shrink/Layout.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "compiler/basic/Format.h"
#include "compiler/basic/Numbers.h"

namespace shardc::shrink {
namespace {

using config::Config;
using config::Opt;

/// The size of one axis in the recipe (`before`) and in the copy (`after`).
struct Axis {
  const char *name;
  int64_t before, after;
};

bool hasExperts(const Config &config) {
  return config.has(Opt::ModelNumMoeExperts) || config.derived().expertParallel > 1;
}

std::vector<Axis> axesOf(const Config &config, const Layout &copy) {
  Layout own = layoutOf(config);
  std::vector<Axis> axes = {{"tensor", own.tensor, copy.tensor},
                            {"pipeline", own.pipeline, copy.pipeline},
                            {"context", own.context, copy.context},
                            {"outer data", own.instances, copy.instances},
                            {"data", own.shard(), copy.shard()}};
  if (hasExperts(config)) {
    axes.push_back({"expert", own.expert, copy.expert});
    axes.push_back({"expert tensor", own.expertTensor, copy.expertTensor});
    axes.push_back({"expert data", own.expertData(), copy.expertData()});
  }
  return axes;
}

/// In ascending order.
std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= number; ++d)
    if (number % d == 0) {
      low.push_back(d);
      if (d * d != number)
        high.push_back(number / d);
    }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Whether the recipe sets the size of expert tensor parallelism; otherwise it equals tensor
/// parallelism.
bool isExpertTensorOwn(const Config &config) {
  return config.isWritten(Opt::ModelExpertTensorParallelSize);
}

/// How much a layout differs from the recipe's: the number of axes reduced to one rank, the number
/// of axes that become larger than one, and the sum of squared logarithms of the axes' ratios.
/// Smaller is better, in this order.
std::tuple<int, int, double> distance(const Config &config, const Layout &copy) {
  int lost = 0, gained = 0;
  double spread = 0;
  for (const Axis &axis : axesOf(config, copy)) {
    lost += axis.before > 1 && axis.after == 1;
    gained += axis.before == 1 && axis.after > 1;
    double ratio = std::log(static_cast<double>(axis.before) / static_cast<double>(axis.after));
    spread += ratio * ratio;
  }
  return {lost, gained, spread};
}

/// Chooses nodes and GPUs per node. If possible, tensor and context parallelism stay inside a node,
/// and the copy has several nodes, and several GPUs per node, exactly if the recipe has.
void placeOnNodes(const Layout &own, Layout &copy) {
  int64_t ranks = copy.ranks(), inner = copy.tensor * copy.context;
  bool wasInside = own.tensor * own.context <= own.gpusPerNode;
  std::tuple<bool, bool, int64_t> best = {false, false, 0};
  for (int64_t gpus : divisors(ranks)) {
    if (gpus > own.gpusPerNode)
      break;
    bool isInside = !wasInside || gpus % inner == 0;
    bool isKept = (ranks / gpus > 1) == (own.nodes > 1) && (gpus > 1) == (own.gpusPerNode > 1);
    best = std::max(best, std::tuple(isInside, isKept, gpus));
  }
  copy.gpusPerNode = std::get<int64_t>(best);
  copy.nodes = ranks / copy.gpusPerNode;
}

/// The sizes that each axis of the copy may have. An axis stays unchanged if a list in the recipe
/// fixes its size.
struct Candidates {
  std::vector<int64_t> tensor, pipeline, context, instances, expert, expertTensor;

  Candidates(const Config &config, const Layout &own)
      : tensor(divisors(own.tensor)), pipeline(divisors(own.pipeline)),
        context(divisors(own.context)), instances(divisors(own.instances)),
        expert(divisors(own.expert)), expertTensor(divisors(own.expertTensor)) {
    if (config.has(Opt::ModelPipelineModelParallelLayout))
      pipeline = {own.pipeline};
    if (config.has(Opt::ModelHierarchicalContextParallelSizes))
      context = {own.context};
  }
};

class Search {
public:
  Search(const Config &config, int64_t ranks)
      : config_(config), ranks_(ranks), own_(layoutOf(config)), candidates_(config, own_) {}

  /// Lists all combinations of the candidate sizes whose product is the number of ranks, sorted by
  /// distance to the recipe's own layout.
  std::vector<Layout> run() {
    for (int64_t tensor : candidates_.tensor)
      for (int64_t pipeline : candidates_.pipeline)
        for (int64_t context : candidates_.context) {
          int64_t replica = tensor * pipeline * context;
          if (ranks_ % replica != 0 || (own_.data == 1 && ranks_ != replica))
            continue;
          Layout layout;
          layout.tensor = tensor;
          layout.pipeline = pipeline;
          layout.context = context;
          layout.data = ranks_ / replica;
          for (int64_t instances : candidates_.instances)
            if (layout.data % instances == 0) {
              layout.instances = instances;
              addExperts(layout);
            }
        }
    std::ranges::stable_sort(found_, {},
                             [&](const Layout &copy) { return distance(config_, copy); });
    return std::move(found_);
  }

private:
  void addExperts(Layout layout) {
    bool isOwn = isExpertTensorOwn(config_);
    std::vector<int64_t> follows = {layout.tensor};
    for (int64_t expert : candidates_.expert)
      for (int64_t tensor : isOwn ? candidates_.expertTensor : follows) {
        if (hasExperts(config_) && ranks_ / layout.pipeline % (expert * tensor) != 0)
          continue;
        layout.expert = expert;
        layout.expertTensor = tensor;
        placeOnNodes(own_, layout);
        found_.push_back(layout);
      }
  }

  const Config &config_;
  int64_t ranks_;
  Layout own_;
  Candidates candidates_;
  std::vector<Layout> found_;
};

} // namespace

Layout layoutOf(const Config &config) {
  const config::Derived &d = config.derived();
  Layout layout;
  layout.tensor = d.tensorParallel;
  layout.pipeline = d.pipelineParallel;
  layout.context = d.contextParallel;
  layout.instances = d.dataParallelOuter;
  layout.data = d.dataParallel;
  layout.expert = d.expertParallel;
  layout.expertTensor = d.expertTensorParallel;
  layout.nodes = d.nodes;
  layout.gpusPerNode = d.gpusPerNode;
  return layout;
}

std::vector<Layout> layoutsFor(const Config &config, int64_t ranks) {
  return Search(config, ranks).run();
}

std::vector<LostAxis> lostAxes(const Config &config, const Layout &copy) {
  std::vector<LostAxis> lost;
  for (const Axis &axis : axesOf(config, copy))
    if (axis.before > 1 && axis.after == 1)
      lost.push_back({axis.name, axis.before});
  return lost;
}

std::string describeAxes(const Config &config, const Layout &copy) {
  std::string text;
  for (const Axis &axis : axesOf(config, copy))
    if (axis.before > 1)
      text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", axis.name,
                          formatNumber(static_cast<double>(axis.before)),
                          formatNumber(static_cast<double>(axis.after)));
  return text;
}

} // namespace shardc::shrink
