#include "compiler/tools/Advice.h"

#include <map>

#include "compiler/predict/Overheads.h"
#include "compiler/tools/FitCheck.h"
#include "runtime/plan/Summary.h"

namespace shardc::tools {
namespace {

using config::Opt;

/// Minimum ratio of step times that is worth a remark.
constexpr double kWorthSaying = 1.01;

/// Bytes that a rank sends in one step; the maximum over the roles.
int64_t sentBytesOf(const plan::Plan &plan) {
  int64_t most = 0;
  for (const plan::Role &role : plan.roles) {
    int64_t bytes = 0;
    for (const plan::TrafficRow &row : plan::trafficOfStep(plan, role))
      bytes += row.sentBytes;
    most = std::max(most, bytes);
  }
  return most;
}

/// Settings that disable FSDP, and all options that require it.
std::vector<std::string> withoutFsdp(bool distributedOptimizer) {
  std::vector<std::string> sets = {"dist.use_megatron_fsdp=false",
                                   "ddp.use_megatron_fsdp=false",
                                   "ddp.use_custom_fsdp=false",
                                   "ddp.data_parallel_sharding_strategy=none",
                                   "ddp.outer_dp_sharding_strategy=no_shard",
                                   "ddp.num_distributed_optimizer_instances=1",
                                   "ddp.fsdp_manual_registration=false",
                                   "checkpoint.ckpt_format=torch_dist"};
  std::string on = distributedOptimizer ? "true" : "false";
  for (const char *section : {"ddp", "optimizer"})
    sets.push_back(fmt::format("{}.use_distributed_optimizer={}", section, on));
  if (!distributedOptimizer)
    for (const char *path : {"ddp.overlap_param_gather=", "optimizer.overlap_param_gather="})
      sets.push_back(path + on);
  return sets;
}

class Adviser {
public:
  Adviser(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
          const CommonOptions &common)
      : config_(config), d_(config.derived()), plan_(plan), diags_(diags), common_(common),
        bytes_(deviceBytesOf(plan)) {}

  void run() {
    layerExceeds();
    if (bytes_ > d_.memoryBytes)
      return; // the error lists the possible solutions
    if (d_.fsdp && d_.strategy != config::ShardingStrategy::NoShard && d_.shardGroup > 1) {
      otherScheme(false, "plain data parallelism");
      otherScheme(true, "the distributed optimizer ('ddp.use_distributed_optimizer')");
    }
    largerMicroBatch();
    halfPrecision();
    balancedStages();
  }

private:
  SourceRange placeOf(Opt opt) const {
    SourceRange place = config_.range(opt);
    return place.isValid() ? place : config_.range(Opt::ClusterGpu);
  }

  /// Another plan of the recipe. If the compiler chooses what is recomputed, it recomputes nothing:
  /// what fits only with recomputation is no advice.
  std::optional<plan::Plan> planOf(std::vector<std::string> sets) const {
    if (choosesRecompute(config_))
      for (std::string &set : recomputing(/*all=*/false))
        sets.push_back(std::move(set));
    return planWith(common_, sets);
  }

  /// The number of elements of all blocks, or of the trained ones.
  int64_t parameters(bool areTrained = false) const {
    int64_t count = 0;
    for (const plan::Block &block : plan_.blocks)
      if (!areTrained || plan_.classOf(block).isTrained)
        count += block.numel;
    return count;
  }

  /// Lower bound of the bytes of any plan with replicated parameters: weights, fp32 gradients, and
  /// state.
  int64_t leastReplicated(bool distributedOptimizer) const {
    int64_t weights = dtypeBytes(d_.params);
    int64_t state = dtypeBytes(d_.expAvg) + dtypeBytes(d_.expAvgSq);
    int64_t shared = distributedOptimizer ? d_.dataParallel * d_.contextParallel : 1;
    return parameters() * weights +
           parameters(/*areTrained=*/true) * (state + d_.masterBytes) / shared;
  }

  void otherScheme(bool distributedOptimizer, const char *name) {
    if (leastReplicated(distributedOptimizer) > d_.memoryBytes)
      return;
    std::optional<plan::Plan> other = planOf(withoutFsdp(distributedOptimizer));
    if (!other || deviceBytesOf(*other) > d_.memoryBytes)
      return;
    auto [bytes, own] = plan::formatBytesApart(deviceBytesOf(*other), bytes_);
    auto [sent, ownSent] = plan::formatBytesApart(sentBytesOf(*other), sentBytesOf(plan_));
    diags_.report(diag::OtherSchemeFits, placeOf(Opt::DistUseMegatronFsdp), name, bytes, own, sent,
                  ownSent);
  }

  /// Peak bytes that are proportional to the micro batch.
  int64_t activationBytes() const {
    plan::MemoryByPurpose memory = plan::memoryByPurpose(predict::largestRole(plan_));
    auto index = static_cast<size_t>(plan::Purpose::Activations);
    return memory.cells[index] + memory.transient[index];
  }

  void largerMicroBatch() {
    int64_t largest = 0, bytes = 0, perRank = d_.globalBatch / d_.dataParallel;
    for (int64_t size = 2 * d_.microBatch; size <= perRank && perRank % size == 0; size *= 2) {
      if (bytes_ + activationBytes() * (size / d_.microBatch - 1) / 2 > d_.memoryBytes)
        break;
      std::optional<plan::Plan> other = planOf({fmt::format("train.micro_batch_size={}", size)});
      if (!other || deviceBytesOf(*other) > d_.memoryBytes)
        break;
      largest = size;
      bytes = deviceBytesOf(*other);
    }
    if (largest > 0)
      diags_.report(diag::LargerMicroBatchFits, placeOf(Opt::TrainMicroBatchSize), largest,
                    plan::formatBytes(bytes), plan::formatBytes(d_.memoryBytes));
  }

  void halfPrecision() {
    if (d_.compute != DType::F32)
      return;
    std::optional<plan::Plan> other = planOf({"mixed_precision=bf16_mixed"});
    if (!other || deviceBytesOf(*other) >= bytes_)
      return;
    auto [bytes, own] = plan::formatBytesApart(deviceBytesOf(*other), bytes_);
    diags_.report(diag::Bf16Saves, placeOf(Opt::ModelBf16), bytes, own);
  }

  /// With equal numbers of layers, the stages with the embedding and the head have more work than
  /// the others.
  void balancedStages() {
    bool isOurs = config_.is(Opt::ModelPipelineSplit, config::PipelineSplit::Even) &&
                  !config_.has(Opt::ModelPipelineModelParallelLayout) &&
                  !config_.has(Opt::ModelNumLayersInFirstPipelineStage) &&
                  !config_.has(Opt::ModelNumLayersInLastPipelineStage) &&
                  !config_.isOn(Opt::ModelAccountForEmbeddingInPipelineSplit) &&
                  !config_.isOn(Opt::ModelAccountForLossInPipelineSplit);
    if (d_.pipelineParallel == 1 || !isOurs)
      return;
    std::vector<std::string> sets = {"model.pipeline_split=balanced"};
    if (choosesRecompute(config_)) // as the plan does, or each split would be searched
      sets.push_back(fmt::format("model.recompute_layers=[\"{}\"]",
                                 fmt::join(plan_.job.model.recomputeLayers, "\", \"")));
    std::optional<plan::Plan> other = planWith(common_, sets);
    if (!other || deviceBytesOf(*other) > d_.memoryBytes)
      return;
    double seconds = predictedStep(*other)->step, own = predictedStep(plan_)->step;
    if (own > kWorthSaying * seconds)
      diags_.report(diag::BalancedStagesAreFaster, placeOf(Opt::ModelPipelineModelParallelSize),
                    formatDuration(seconds), formatDuration(own),
                    other->job.model.pipelineModelParallelLayout);
  }

  /// A rank holds the complete unit after its gather, and the complete gradient before its
  /// reduction, so both must fit the device.
  void layerExceeds() {
    std::map<int32_t, int64_t> units;
    for (const plan::Block &block : plan_.blocks)
      units[block.unit] += block.numel;
    auto largest = std::max_element(units.begin(), units.end(), [](const auto &a, const auto &b) {
      return a.second < b.second;
    });
    if (largest == units.end() || largest->first < 0)
      return;
    int64_t bytes = largest->second * 2 * dtypeBytes(d_.params);
    if (bytes <= d_.memoryBytes)
      return;
    int64_t degree = d_.tensorParallel;
    while (degree < d_.worldSize && bytes * d_.tensorParallel / degree > d_.memoryBytes / 2)
      degree *= 2;
    diags_.report(diag::LayerExceedsDevice, placeOf(Opt::ModelHiddenSize),
                  plan_.units[static_cast<size_t>(largest->first)].name, plan::formatBytes(bytes),
                  plan::formatBytes(d_.memoryBytes), degree);
  }

  const config::Config &config_;
  const config::Derived &d_;
  const plan::Plan &plan_;
  DiagEngine &diags_;
  const CommonOptions &common_;
  int64_t bytes_;
};

} // namespace

void reportAdvice(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
                  const CommonOptions &common) {
  const config::Derived &d = config.derived();
  bool isOnGpu = d.gpu && !predict::device(*d.gpu).isHost();
  if (isOnGpu && d.memoryBytes > 0 && !common.load.path.empty())
    Adviser(config, plan, diags, common).run();
}

} // namespace shardc::tools
