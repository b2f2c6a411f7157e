#include "compiler/config/Mesh.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <llvm/ADT/STLExtras.h>

#include "compiler/config/ReadSchedule.h"
#include "runtime/base/Status.h"

namespace shardc::config {
namespace {

/// The sizes of the chain's groups of adjacent ranks: products of its first degrees.
std::vector<int64_t> cutsOf(const Chain &chain) {
  std::vector<int64_t> cuts;
  int64_t ranks = 1;
  for (const Degree &degree : chain) {
    if (__builtin_mul_overflow(ranks, degree.size, &ranks))
      break; // the rule on the number of GPUs refuses it
    cuts.push_back(ranks);
  }
  return cuts;
}

/// The group sizes before and after a degree. They are equal for a degree of 1.
std::pair<int64_t, int64_t> cutsOfDegree(const Chain &chain, std::string_view name) {
  int64_t begin = 1, end = 1;
  for (const Degree &degree : chain) {
    begin = end, end *= degree.size;
    if (degree.name == name)
      break;
  }
  return {begin, end};
}

Chain inOrder(const Config &config, Degree tensor, Degree second, Degree data, Degree outer) {
  Degree stages{"pp", config.derived().pipelineParallel};
  if (config.isOn(Opt::DistUseTpPpDpMapping))
    return {tensor, second, stages, data, outer};
  return {tensor, second, data, outer, stages};
}

/// Builds a mesh from the group sizes of both chains (cuts).
class Refinement {
public:
  /// Collects the rank strides (cuts) at which either chain changes its degree; neighbouring cuts
  /// bound an axis. Then each degree of a chain is a group of axes, and groups that combine degrees
  /// are added.
  Refinement(const Chain &dense, const Chain &expert, const InnerRanks &inner) {
    std::set<int64_t> cuts = {1, cutsOfDegree(dense, "cp").first * inner.context,
                              cutsOfDegree(dense, "tp").first * inner.tensor};
    for (const Chain *chain : {&dense, &expert})
      for (int64_t cut : cutsOf(*chain))
        cuts.insert(cut);
    cuts_.assign(cuts.begin(), cuts.end());
    nameAxes(dense);
    for (const Chain *chain : {&dense, &expert})
      addGroups(*chain);
    std::vector<uint16_t> every(mesh_.axes.size());
    for (uint16_t axis = 0; axis < every.size(); ++axis)
      every[axis] = axis;
    std::vector<uint16_t> dp = axesOf(dense, "dp"), cp = axesOf(dense, "cp");
    std::vector<uint16_t> outer = axesOf(dense, "dp_outer");
    mesh_.data = groupOf("data", joined(outer, dp));
    mesh_.shard = groupOf("shard", joined(dp, cp));
    mesh_.state = groupOf("state", joined(joined(dp, cp), outer));
    mesh_.all = groupOf("all", every);
    bool isAsDense = axesOf(expert, "ep").empty() && axesOf(expert, "etp") == axesOf(dense, "tp");
    if (!expert.empty() && !isAsDense)
      addCopiesOfExperts(expert);
  }

  Mesh take() { return std::move(mesh_); }

private:
  /// Adds an axis for each pair of adjacent cuts, the slowest first. Its name is that of the dense
  /// degree that contains it.
  void nameAxes(const Chain &dense) {
    std::map<std::string, int> parts;
    std::vector<std::string> owners;
    for (size_t i = 1; i < cuts_.size(); ++i) {
      owners.push_back(ownerOf(dense, cuts_[i]));
      ++parts[owners.back()];
    }
    std::map<std::string, int> seen;
    for (size_t i = 1; i < cuts_.size(); ++i) {
      std::string name = owners[i - 1];
      int part = seen[name]++, count = parts[name];
      if (count == 2)
        name += part == 0 ? ".lo" : ".hi";
      else if (count > 2)
        name += fmt::format(".{}", part);
      mesh_.axes.push_back({name, cuts_[i] / cuts_[i - 1]});
    }
    if (parts.count("dp") == 0)
      addSingleAxis(dense);
    std::reverse(mesh_.axes.begin(), mesh_.axes.end());
  }

  /// Adds axis dp if it has only one coordinate, because plans always have it.
  void addSingleAxis(const Chain &dense) {
    int64_t cut = cutsOfDegree(dense, "dp").first;
    auto at = std::ranges::find(cuts_, cut) - cuts_.begin();
    mesh_.axes.insert(mesh_.axes.begin() + at, {"dp", 1});
    cuts_.insert(cuts_.begin() + at, cut);
  }

  /// The dense degree that contains the axis ending at the cut.
  static std::string ownerOf(const Chain &dense, int64_t cut) {
    int64_t ranks = 1;
    for (const Degree &degree : dense)
      if ((ranks *= degree.size) >= cut)
        return degree.name;
    SHARDC_CHECK(false, "the chain of experts has more ranks");
    return {};
  }

  void addGroups(const Chain &chain) {
    for (const Degree &degree : chain)
      if (degree.size > 1 || degree.name == "dp")
        mesh_.links.emplace_back(degree.name, groupOf(degree.name, axesOf(chain, degree.name)));
  }

  /// Adds the groups of ranks with the same experts. A group of a single rank has no axes.
  void addCopiesOfExperts(const Chain &expert) {
    std::vector<uint16_t> inside = axesOf(expert, "edp");
    mesh_.expertShard = groupOf("edp", inside);
    mesh_.expertState = groupOf("edp_all", joined(inside, axesOf(expert, "edp_outer")));
  }

  std::vector<uint16_t> axesOf(const Chain &chain, const std::string &name) const {
    auto [begin, end] = cutsOfDegree(chain, name);
    std::vector<uint16_t> axes;
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      size_t cut = mesh_.axes.size() - axis;        // axes are slowest first, cuts fastest first
      bool isSingle = cuts_[cut - 1] == cuts_[cut]; // an axis of size 1 matches by name
      bool isInside = begin <= cuts_[cut - 1] && cuts_[cut] <= end;
      if (isSingle ? mesh_.axes[axis].name == name : isInside)
        axes.push_back(static_cast<uint16_t>(axis));
    }
    return axes;
  }

  static std::vector<uint16_t> joined(std::vector<uint16_t> slow,
                                      const std::vector<uint16_t> &fast) {
    slow.insert(slow.end(), fast.begin(), fast.end());
    return slow;
  }

  size_t groupOf(const std::string &name, const std::vector<uint16_t> &axes) {
    auto found = std::ranges::find(mesh_.groups, axes, &Mesh::Group::axes);
    if (found == mesh_.groups.end())
      found = mesh_.groups.insert(found, {name, axes});
    return static_cast<size_t>(found - mesh_.groups.begin());
  }

  std::vector<int64_t> cuts_; ///< 1, and the end of each axis, fastest first
  Mesh mesh_;
};

} // namespace

Chain denseChain(const Config &config) {
  const Derived &d = config.derived();
  int64_t outer = d.dataParallelOuter;
  return inOrder(config, {"tp", d.tensorParallel}, {"cp", d.contextParallel},
                 {"dp", d.dataParallel / outer}, {"dp_outer", outer});
}

Chain expertChain(const Config &config, std::optional<int64_t> expertParallel) {
  const Derived &d = config.derived();
  if (!config.has(Opt::ModelNumMoeExperts) && d.expertParallel == 1)
    return {};
  int64_t experts = expertParallel.value_or(d.expertParallel);
  int64_t copies = d.worldSize / d.pipelineParallel / d.expertTensorParallel / experts;
  int64_t outer = copies % d.dataParallelOuter == 0 ? d.dataParallelOuter : 1;
  return inOrder(config, {"etp", d.expertTensorParallel}, {"ep", experts}, {"edp", copies / outer},
                 {"edp_outer", outer});
}

model::Placement placementOf(const Config &config) {
  const Derived &d = config.derived();
  if (!config.passOrder().empty())
    return passOrderOf(config, d.numMicrobatches).placement;
  auto schedule =
      config.getEnumOr(Opt::ModelPipelineSchedule, PipelineSchedule::OneForwardOneBackward);
  return model::placementFor(static_cast<plan::Job::PipelineSchedule>(schedule), // one table
                             d.pipelineParallel, d.virtualStages,
                             config.getStringOr(Opt::ModelPipelinePlacement, ""));
}

model::StageRequest stageRequestOf(const Config &config) {
  const Derived &d = config.derived();
  model::StageRequest request;
  request.layers = d.numLayers;
  request.stages = d.pipelineParallel;
  request.chunks = d.virtualStages;
  request.first = config.getIntOr(Opt::ModelNumLayersInFirstPipelineStage, 0);
  request.last = config.getIntOr(Opt::ModelNumLayersInLastPipelineStage, 0);
  request.countsEmbedding = config.isOn(Opt::ModelAccountForEmbeddingInPipelineSplit);
  request.countsLoss = config.isOn(Opt::ModelAccountForLossInPipelineSplit);
  request.isBalanced = config.is(Opt::ModelPipelineSplit, PipelineSplit::Balanced);
  request.layout = config.getStringOr(Opt::ModelPipelineModelParallelLayout, "");
  if (request.stages <= model::kChunksMax / request.chunks)
    request.placement = placementOf(config);
  return request;
}

const Mesh::Group *Mesh::findGroup(const std::string &name) const {
  auto found = std::ranges::find(links, name, &std::pair<std::string, size_t>::first);
  return found == links.end() ? nullptr : &groups[found->second];
}

std::optional<MeshConflict> findConflict(const Chain &dense, const Chain &expert) {
  for (int64_t a : cutsOf(dense))
    for (int64_t b : cutsOf(expert))
      if (a % b != 0 && b % a != 0)
        return MeshConflict{a, b};
  return std::nullopt;
}

int64_t innerContext(const Config &config) {
  Opt sizes = Opt::ModelHierarchicalContextParallelSizes, types = Opt::ModelCpCommType;
  int64_t ranks = config.derived().contextParallel;
  if (ranks == 1 || !config.has(sizes) || !config.has(types) || config.getList(sizes).empty() ||
      !llvm::is_contained(config.getEnums<CpCommType>(types), CpCommType::A2aP2p))
    return 1;
  int64_t inner = *config.getList(sizes).front().asInt();
  return inner > 0 && ranks % inner == 0 ? inner : 1; // rules refuse other sizes
}

int64_t ranksOfKey(const Config &config) {
  const Derived &d = config.derived();
  bool isShared = d.tensorParallel > d.numGroups && d.tensorParallel % d.numGroups == 0;
  return isShared ? d.tensorParallel / d.numGroups : 1;
}

Mesh refine(const Chain &dense, const Chain &expert, const InnerRanks &inner) {
  return Refinement(dense, expert, inner).take();
}

} // namespace shardc::config
