// Chooses the mesh and everything counted in sequences or steps. One microbatch stays one and
// several stay several; an interval that ends within the recipe's run also ends within the copy's.
#include <algorithm>

#include "compiler/shrink/Sizes.h"

namespace shardc::shrink {
namespace {

using config::Config;
using config::Opt;
using config::Value;

constexpr int64_t kSteps = 20;
constexpr int64_t kMicrobatches = 3; ///< the first, the last and one between them
constexpr int64_t kEvaluationSteps = 2;

class RunSizes {
public:
  RunSizes(const Config &config, const Layout &layout, Changes &changes)
      : config_(config), d_(config.derived()), layout_(layout), changes_(changes) {}

  void run() {
    setMesh();
    shrinkBatches();
    shrinkSteps();
    moveCheckpoints();
  }

private:
  int64_t number(Opt option) const { return config_.getIntOr(option, 0); }

  void setMesh() {
    changes_.setInt(Opt::ModelTensorModelParallelSize, layout_.tensor);
    changes_.setInt(Opt::ModelPipelineModelParallelSize, layout_.pipeline);
    changes_.setInt(Opt::ModelContextParallelSize, layout_.context);
    changes_.setInt(Opt::ModelExpertModelParallelSize, layout_.expert);
    changes_.setOwn(Opt::ModelExpertTensorParallelSize, layout_.expertTensor);
    changes_.setInt(Opt::DdpNumDistributedOptimizerInstances, layout_.instances);
    changes_.setInt(Opt::ClusterNodes, layout_.nodes);
    changes_.setInt(Opt::ClusterGpusPerNode, layout_.gpusPerNode);
    setSchedule();
    Opt evaluation = Opt::DistEvalContextParallelSize;
    if (changes_.isOwn(evaluation))
      changes_.setInt(evaluation, std::min(number(evaluation), layout_.context));
  }

  /// With one stage, resets the pipeline schedule to its default.
  void setSchedule() {
    if (layout_.pipeline > 1)
      return changes_.setOwn(Opt::ModelMicrobatchGroupSizePerVpStage, layout_.pipeline);
    changes_.clear(Opt::ModelMicrobatchGroupSizePerVpStage);
    changes_.set(Opt::ModelPipelineSchedule,
                 config::Value::ofEnum(config::PipelineSchedule::OneForwardOneBackward));
  }

  /// At most two sequences per microbatch, and enough microbatches to fill a pipeline twice.
  /// Optional batch sizes are lowered only if the recipe sets them.
  void shrinkBatches() {
    int64_t micro = std::min<int64_t>(d_.microBatch, 2);
    int64_t most = layout_.pipeline > 1 ? 2 * layout_.pipeline : kMicrobatches;
    int64_t microbatches = std::min(d_.numMicrobatches, most);
    if (d_.virtualStages > 1 && microbatches > layout_.pipeline)
      microbatches -= microbatches % layout_.pipeline;
    int64_t round = micro * layout_.data;
    batch_ = round * microbatches;
    changes_.setOwn(Opt::TrainMicroBatchSize, micro);
    changes_.setOwn(Opt::TrainGlobalBatchSize, batch_);
    if (changes_.isOwn(Opt::ModelNumMicrobatchesWithPartialActivationCheckpoints))
      lower(Opt::ModelNumMicrobatchesWithPartialActivationCheckpoints, microbatches);
    if (changes_.isOwn(Opt::ValidationEvalMicroBatchSize))
      lower(Opt::ValidationEvalMicroBatchSize, 2);
    if (changes_.isOwn(Opt::ValidationEvalGlobalBatchSize)) {
      int64_t evalMicro =
          std::min(config_.getIntOr(Opt::ValidationEvalMicroBatchSize, micro), int64_t{2});
      changes_.setInt(Opt::ValidationEvalGlobalBatchSize,
                      evalMicro * layout_.data * layout_.context);
    }
    if (config_.has(Opt::TrainRampupBatchSize))
      shrinkRamp(round);
    if (config_.has(Opt::TrainStepBatchSizeSchedule))
      shrinkSchedule(round);
  }

  /// A ramp that grows until the middle of the run. It starts with one round, a microbatch on every
  /// data-parallel rank, and grows by the same amount; with virtual stages, by one round per stage.
  void shrinkRamp(int64_t round) {
    int64_t turn = round * (d_.virtualStages > 1 ? layout_.pipeline : 1);
    Value each = Value::ofInt(std::min(turn, batch_));
    changes_.set(Opt::TrainRampupBatchSize,
                 Value::ofList({each, each, Value::ofInt(batch_ * kSteps / 2)}));
  }

  /// A schedule with two batch sizes: one round, and from the middle of the run on the whole batch.
  void shrinkSchedule(int64_t round) {
    int64_t turn = round * (d_.virtualStages > 1 ? layout_.pipeline : 1);
    int64_t middle = batch_ * kSteps / 2 * config_.getIntOr(Opt::ModelSeqLength, 1);
    changes_.set(
        Opt::TrainStepBatchSizeSchedule,
        Value::ofString(fmt::format("0:{} {}:{}", std::min(turn, batch_), middle, batch_)));
  }

  void lower(Opt option, int64_t most) { changes_.setInt(option, std::min(number(option), most)); }

  /// At most kSteps steps. Warm-up, decay and similar lengths shrink in the same proportion, but
  /// never to 0 if they were not.
  void shrinkSteps() {
    int64_t before = d_.trainIters;
    int64_t after = std::min(before, kSteps);
    changes_.setOwn(Opt::TrainTrainIters, after);
    changes_.setOwn(Opt::TrainTrainSamples, after * batch_);
    if (config_.has(Opt::TrainNumEpochs)) { // there, the data determine the number of steps
      changes_.clear(Opt::TrainNumEpochs);
      changes_.setInt(Opt::TrainTrainIters, after);
    }
    if (before <= after)
      return;
    auto scale = [&](Opt option, int64_t whole, int64_t smaller) {
      if (changes_.isOwn(option) && number(option) > 0)
        changes_.setInt(option,
                        std::max<int64_t>(static_cast<int64_t>(static_cast<double>(number(option)) /
                                                               static_cast<double>(whole) *
                                                               static_cast<double>(smaller)),
                                          1));
    };
    for (Opt steps :
         {Opt::SchedulerLrDecayIters, Opt::SchedulerLrWarmupIters, Opt::SchedulerLrWsdDecayIters})
      scale(steps, before, after);
    for (Opt samples : {Opt::SchedulerLrDecaySamples, Opt::SchedulerLrWarmupSamples,
                        Opt::SchedulerLrWsdDecaySamples})
      scale(samples, d_.phase ? number(Opt::TrainTrainSamples) : before * d_.globalBatch,
            after * batch_);
    if (changes_.isOwn(Opt::SchedulerMaxSteps))
      changes_.setInt(Opt::SchedulerMaxSteps, after);
    shrinkIntervals(after);
  }

  void shrinkIntervals(int64_t steps) {
    for (Opt interval :
         {Opt::TrainExitInterval, Opt::TrainCheckWeightHashAcrossDpReplicasInterval,
          Opt::ValidationEvalInterval, Opt::ValidationStartEvalAtIter, Opt::CheckpointSaveInterval,
          Opt::CheckpointSaveRetainInterval, Opt::CheckpointNonPersistentSaveInterval})
      if (changes_.isOwn(interval))
        lower(interval, std::max<int64_t>(steps / 2, 1));
    lower(Opt::LoggerLogInterval, 1);
    if (config_.has(Opt::ValidationEvalInterval))
      lower(Opt::ValidationEvalIters, kEvaluationSteps);
  }

  /// Checkpoints of the copy need other folders, and it cannot load the recipe's: their tensors
  /// have other shapes.
  void moveCheckpoints() {
    auto beside = [](const std::string &folder) { return Value::ofString(folder + "_small"); };
    Opt save = Opt::CheckpointSave, load = Opt::CheckpointLoad;
    for (Opt folder : {save, Opt::CheckpointNonPersistentGlobalCkptDir,
                       Opt::CheckpointNonPersistentLocalCkptDir})
      if (config_.has(folder))
        changes_.set(folder, beside(config_.getString(folder)));
    if (config_.has(load)) {
      bool isResumed = config_.has(save) && config_.getString(save) == config_.getString(load);
      if (isResumed)
        changes_.set(load, beside(config_.getString(load)));
      else
        changes_.clear(load);
      changes_.clear(Opt::CheckpointCkptStep);
    }
    // Adapters require a pretrained checkpoint, so its path stays only with adapters.
    if (!config_.has(Opt::PeftScheme))
      changes_.clear(Opt::CheckpointPretrainedCheckpoint);
  }

  const Config &config_;
  const config::Derived &d_;
  const Layout &layout_;
  Changes &changes_;
  int64_t batch_ = 1;
};

} // namespace

void shrinkRun(const Config &config, const Layout &layout, Changes &changes) {
  RunSizes(config, layout, changes).run();
}

} // namespace shardc::shrink
