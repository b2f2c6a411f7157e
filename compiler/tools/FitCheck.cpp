#include "compiler/tools/FitCheck.h"

#include <algorithm>
#include <functional>

#include "compiler/config/Effect.h"
#include "compiler/lower/Lower.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Summary.h"

namespace shardc::tools {
namespace {

using config::Opt;

/// Maximum number of times that the number of nodes is doubled.
constexpr int kRankDoublingsMax = 6;

class Changes {
public:
  Changes(const config::Config &config, const CommonOptions &common)
      : config_(config), d_(config.derived()), common_(common) {}

  /// Tries changes from cheap to expensive: a smaller micro batch, recomputation, more sharding,
  /// more ranks, and combinations. Each is compiled, so its bytes are exact. If the compiler
  /// chooses what is recomputed, a change counts as fitting if it fits with all recomputed.
  std::vector<FitChange> run() {
    const std::vector<std::string> smaller = {"train.micro_batch_size=1"};
    const std::vector<std::string> recompute = recomputing(/*all=*/true);
    if (choosesRecompute(config_))
      always_ = recompute;
    bool canBeSmaller = d_.microBatch > 1;
    bool canRecompute = always_.empty() && !config_.is(Opt::ModelRecomputeGranularity,
                                                       config::RecomputeGranularity::Full);
    if (canBeSmaller)
      attempt(smaller, "'train.micro_batch_size = 1'");
    if (canRecompute)
      attempt(recompute, "full recomputation ('model.recompute_granularity = full')");
    if (d_.strategy != config::ShardingStrategy::OptimGradsParams)
      nextStrategy();
    otherSplit();
    adapters();
    moreRanks({}, "");
    if (canBeSmaller && canRecompute) {
      std::vector<std::string> both = recompute;
      both.insert(both.end(), smaller.begin(), smaller.end());
      attempt(both, "full recomputation and 'train.micro_batch_size = 1'");
      moreRanks(both, ", full recomputation and 'train.micro_batch_size = 1'");
    } else if (canRecompute) {
      moreRanks(recompute, ", full recomputation");
    } else if (canBeSmaller) {
      moreRanks(smaller, ", 'train.micro_batch_size = 1'");
    }
    capacityOfExperts();
    return std::move(changes_);
  }

private:
  /// The bytes on each device with additional settings; empty if that recipe has errors.
  std::optional<int64_t> bytesWith(std::vector<std::string> sets) const {
    sets.insert(sets.end(), always_.begin(), always_.end());
    std::optional<plan::Plan> plan = planWith(common_, sets);
    return plan ? std::optional(deviceBytesOf(*plan)) : std::nullopt;
  }

  bool attempt(const std::vector<std::string> &sets, std::string what) {
    std::optional<int64_t> bytes = bytesWith(sets);
    if (!bytes)
      return false;
    changes_.push_back({sets, std::move(what), *bytes});
    return *bytes <= d_.memoryBytes;
  }

  /// Tries other capacities for imbalanced routing: ranks of experts receive at most twice an even
  /// share of rows, or all rows.
  void capacityOfExperts() {
    if (d_.expertParallel == 1)
      return;
    constexpr double kTwice = 2;
    Opt factor = Opt::ModelMoeExpertRankCapacityFactor;
    const std::string path = "model.moe_expert_rank_capacity_factor";
    if (!config_.has(factor) || config_.getFloat(factor) != kTwice)
      attempt({path + "=2"}, fmt::format("room for twice an even share of rows ('{} = 2')", path));
    if (config_.has(factor))
      attempt({path + "=none"}, fmt::format("room for any imbalance ('{} = none')", path));
  }

  /// Tries to divide the model further among the same ranks, most divided first; stops at the first
  /// split that fits.
  void otherSplit() {
    constexpr size_t kTriesMax = 6;
    constexpr int64_t kStagesMax = 8;
    std::vector<std::pair<int64_t, int64_t>> splits; // ranks of a layer, stages
    for (int64_t stages = 1; stages <= std::min(kStagesMax, d_.numLayers); stages *= 2)
      for (int64_t tensor = 1; tensor <= d_.gpusPerNode; tensor *= 2)
        if (int64_t parts = tensor * stages; d_.worldSize % (parts * d_.contextParallel) == 0 &&
                                             parts >= d_.tensorParallel * d_.pipelineParallel &&
                                             parts > 1 && tensor != d_.tensorParallel)
          splits.emplace_back(tensor, stages);
    std::ranges::stable_sort(splits, std::greater(), [](auto split) {
      return std::pair(split.first * split.second, split.first);
    });
    splits.resize(std::min(splits.size(), kTriesMax));
    for (auto [tensor, stages] : splits)
      if (attempt({fmt::format("model.tensor_model_parallel_size={}", tensor),
                   fmt::format("model.sequence_parallel={}", tensor > 1),
                   fmt::format("model.pipeline_model_parallel_size={}", stages),
                   "model.virtual_pipeline_model_parallel_size=none"},
                  fmt::format("'model.tensor_model_parallel_size = {}' with "
                              "'model.pipeline_model_parallel_size = {}'",
                              tensor, stages)))
        return;
  }

  /// Tries to freeze the model and train adapters, which need no state of an optimizer for it.
  void adapters() {
    if (!config_.has(Opt::PeftScheme))
      attempt({"peft.scheme=lora"}, "training adapters alone ('peft.scheme = lora')");
  }

  void nextStrategy() {
    using config::ShardingStrategy;
    auto next = static_cast<ShardingStrategy>(static_cast<int>(d_.strategy) + 1);
    for (;; next = static_cast<ShardingStrategy>(static_cast<int>(next) + 1)) {
      std::string name = config::spelling(next).str();
      std::vector<std::string> sets = {"dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true",
                                       "ddp.data_parallel_sharding_strategy=" + name,
                                       "checkpoint.ckpt_format=fsdp_dtensor"};
      if (attempt(sets,
                  fmt::format("'ddp.data_parallel_sharding_strategy = {}' under Megatron FSDP",
                              name)) ||
          next == ShardingStrategy::OptimGradsParams)
        return;
    }
  }

  /// Searches for the fewest doublings of the nodes (and of the global batch, if it is too small
  /// for them) with which the plan fits. The largest number is tried first: if it does not fit,
  /// fewer ranks need at least as much memory.
  void moreRanks(const std::vector<std::string> &also, const std::string &suffix) {
    if (d_.strategy == config::ShardingStrategy::NoShard)
      return;
    std::optional<FitChange> found;
    int tooFew = 0, least = kRankDoublingsMax + 1; // numbers of doublings
    for (int tried = kRankDoublingsMax; tried > tooFew && tried < least;) {
      int64_t times = int64_t{1} << tried, nodes = d_.nodes * times;
      int64_t batch = std::max(d_.globalBatch, d_.microBatch * d_.dataParallel * times);
      std::vector<std::string> sets = {fmt::format("cluster.nodes={}", nodes),
                                       fmt::format("train.global_batch_size={}", batch)};
      sets.insert(sets.end(), also.begin(), also.end());
      std::optional<int64_t> bytes = bytesWith(sets);
      if (bytes && *bytes > d_.memoryBytes)
        tooFew = tried;
      else
        least = tried; // or the recipe has errors with so many
      if (bytes && *bytes <= d_.memoryBytes)
        found = {
            sets,
            fmt::format("{} ranks ('cluster.nodes = {}'){}", nodes * d_.gpusPerNode, nodes, suffix),
            *bytes};
      tried = bytes ? (tooFew + least) / 2 : tried - 1;
    }
    if (found)
      changes_.push_back(std::move(*found));
  }

  const config::Config &config_;
  const config::Derived &d_;
  const CommonOptions &common_;
  std::vector<std::string> always_; ///< settings of all changes
  std::vector<FitChange> changes_;
};

} // namespace

plan::Plan placedPlan(const config::Config &config, const SourceManager &sources,
                      const passes::PipelineOptions &options) {
  plan::Plan plan = lower::lower(config, sources);
  passes::Notes notes;
  passes::runPipeline(plan, options, notes);
  return plan;
}

std::optional<plan::Plan> planWith(const CommonOptions &common,
                                   const std::vector<std::string> &sets) {
  SourceManager sources;
  DiagEngine diags(sources);
  config::LoadOptions load = common.load;
  load.sets.insert(load.sets.end(), sets.begin(), sets.end());
  std::optional<config::Config> config = config::loadConfig(sources, diags, load);
  if (!config || !lower::findMissing(*config).empty())
    return std::nullopt;
  return placedPlan(*config, sources);
}

bool choosesRecompute(const config::Config &config) {
  return config.is(Opt::ModelRecomputeGranularity, config::RecomputeGranularity::Auto) &&
         !config.has(Opt::ModelRecomputeLayers);
}

std::vector<std::string> recomputing(bool all) {
  return {std::string("model.recompute_granularity=") + (all ? "full" : "none"),
          std::string("model.recompute_method=") + (all ? "uniform" : "none"),
          std::string("model.recompute_num_layers=") + (all ? "1" : "none")};
}

int64_t deviceBytesOf(const plan::Plan &plan) {
  int64_t largest = 0;
  for (const plan::Role &role : plan.roles)
    largest = std::max(largest, predict::deviceBytesOf(plan, role));
  return largest;
}

std::vector<FitChange> tryChanges(const config::Config &config, const CommonOptions &common) {
  return Changes(config, common).run();
}

namespace {

/// Settings with which a rank needs few enough graphs, each with the number of graphs that it then
/// captures.
std::vector<std::pair<std::string, std::string>> withFewerGraphs(const config::Config &config,
                                                                 const CommonOptions &common) {
  const config::Derived &d = config.derived();
  std::vector<std::vector<std::string>> attempts;
  for (int64_t chunks = d.virtualStages / 2; chunks > 1; chunks /= 2)
    attempts.push_back({fmt::format("model.virtual_pipeline_model_parallel_size={}", chunks)});
  if (d.virtualStages > 1)
    attempts.push_back({"model.virtual_pipeline_model_parallel_size=none",
                        "model.microbatch_group_size_per_vp_stage=none",
                        "model.pipeline_schedule=one_forward_one_backward"});
  for (int64_t size = 2 * d.microBatch; size <= 8 * d.microBatch; size *= 2)
    attempts.push_back({fmt::format("train.micro_batch_size={}", size)});
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::vector<std::string> &sets : attempts) {
    std::optional<plan::Plan> plan = planWith(common, sets);
    if (!plan || std::ranges::any_of(plan->roles, [&](const plan::Role &role) {
          return plan::graphsBeyondLimit(*plan, role).has_value();
        }))
      continue;
    std::string what;
    for (const std::string &set : sets)
      what += (what.empty() ? "'--set " : " --set ") + set;
    plan::GraphNeed most;
    for (const plan::Role &role : plan->roles)
      if (plan::GraphNeed need = plan::graphsOf(*plan, role); need.nodes > most.nodes)
        most = need;
    found.emplace_back(what + "'", plan::toString(most));
  }
  return found;
}

/// Reports arenas that exceed the limit of plans, and ranks that must capture too many graphs.
/// These limits do not depend on the device.
bool reportLimits(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
                  const CommonOptions &common) {
  SourceRange place = config.range(Opt::TrainGlobalBatchSize);
  for (const plan::Role &role : plan.roles) {
    if (std::optional<plan::GraphNeed> need = plan::graphsBeyondLimit(plan, role)) {
      DiagBuilder report = diags.report(diag::TooManyGraphs, place, role.name,
                                        plan::toString(*need), plan::limits::kGraphNodesMax);
      report.note(diag::GraphsOfSlots, SourceRange());
      if (!common.load.path.empty()) // not for text in an editor
        for (const auto &[what, text] : withFewerGraphs(config, common))
          report.note(diag::FewerGraphs, SourceRange(), what, text);
      return false;
    }
    for (size_t a = 0; a < role.arenaBytes.size(); ++a)
      if (role.arenaBytes[a] > plan::limits::kBytesMax) {
        diags.report(diag::PlanTooLarge, place, plan::formatBytes(role.arenaBytes[a]),
                     plan::toString(static_cast<plan::Arena>(a)),
                     plan::formatBytes(plan::limits::kBytesMax));
        return false;
      }
  }
  return true;
}

} // namespace

bool reportFit(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
               const CommonOptions &common) {
  const config::Derived &d = config.derived();
  int64_t needed = deviceBytesOf(plan);
  if (d.memoryBytes == 0 || needed <= d.memoryBytes)
    return reportLimits(config, plan, diags, common);
  SourceRange place = config.range(Opt::ClusterGpu);
  if (!place.isValid())
    place = config.range(Opt::TrainMicroBatchSize);
  DiagBuilder report = diags.report(diag::DoesNotFit, place, plan::formatBytes(needed),
                                    config::spelling(*d.gpu), plan::formatBytes(d.memoryBytes));
  plan::MemoryByPurpose memory = plan::memoryByPurpose(predict::largestRole(plan));
  int64_t largest = 0;
  plan::Purpose leads = plan::Purpose::Params;
  for (int p = 0; p < plan::kPurposeCount; ++p) {
    auto purpose = static_cast<plan::Purpose>(p);
    int64_t bytes = memory.cells[static_cast<size_t>(p)] + memory.transient[static_cast<size_t>(p)];
    if (bytes == 0)
      continue;
    report.note(diag::BytesByPurpose, SourceRange(), plan::toString(purpose),
                plan::formatBytes(bytes));
    if (bytes > largest) {
      largest = bytes;
      leads = purpose;
    }
  }
  if (leads == plan::Purpose::Activations)
    report.note(diag::ActivationsLead, SourceRange());
  for (const config::OptionInfo &option : config::options())
    if (option.ignored == config::Ignored::SavesMemory && isSavingIgnored(config, option))
      report.note(diag::SavingNotDone, config.range(option.opt), option.path);
  if (common.load.path.empty())
    return false; // text in an editor: only `check` searches for solutions
  bool any = false;
  for (const FitChange &change : tryChanges(config, common)) {
    if (change.bytes > d.memoryBytes)
      continue;
    report.note(diag::WouldFit, SourceRange(), change.what, plan::formatBytes(change.bytes));
    any = true;
  }
  report.note(any ? diag::TuneSearches : diag::NothingFits, SourceRange());
  return false;
}

} // namespace shardc::tools
