// Derives options that the recipe leaves unset. Rules run in the order of the table; each rule sees
// the results of the preceding ones.
#include <bit>
#include <numeric>

#include "compiler/config/Effect.h"
#include "compiler/config/RulePredicates.h"
#include "compiler/model/LayerList.h"

namespace shardc::config {

namespace {

/// Sizes of a small model that is used if the recipe gives none.
constexpr int64_t kStandInLayers = 2;
constexpr int64_t kStandInHidden = 128;
constexpr int64_t kStandInHeads = 4;

constexpr int64_t kBytesVocab = 257; ///< 256 bytes and the end of a document
constexpr int64_t kDocumentEnd = 256;
constexpr int64_t kStandInVocab = 50'257;
constexpr int64_t kStandInIterations = 100;
constexpr double kStandInLearningRate = 3e-4;
constexpr int64_t kOverlapBucket = 134'217'728;

} // namespace

RULE_CODE(StandInModel) {
  for (Opt size : {ModelNumLayers, ModelHiddenSize, ModelNumAttentionHeads})
    if (has(size) || isWritten(size))
      return;
  derive(ModelNumLayers, kStandInLayers);
  derive(ModelHiddenSize, kStandInHidden);
  derive(ModelNumAttentionHeads, kStandInHeads);
}

RULE_DO(MicroBatchLeftOpen, derive(TrainMicroBatchSize, 1));
RULE_IF(IterationsLeftOpen, !has(TrainTrainSamples) && !has(TrainNumEpochs),
        derive(TrainTrainIters, kStandInIterations));
RULE_DO(LearningRateLeftOpen, derive(OptimizerLr, kStandInLearningRate));

RULE_CODE(PrecisionTwins) {
  bool isBf16 = on(ModelBf16), isFp16 = on(ModelFp16);
  derive(OptimizerBf16, isBf16, ModelBf16);
  derive(OptimizerFp16, isFp16, ModelFp16);
  FloatType type = isBf16 ? FloatType::Bf16 : isFp16 ? FloatType::Fp16 : FloatType::Fp32;
  Opt cause = isFp16 ? ModelFp16 : ModelBf16;
  for (Opt opt : {ModelParamsDtype, OptimizerParamsDtype, ModelPipelineDtype})
    derive(opt, type, cause);
}

RULE_CODE(HeadSize) {
  int64_t hidden = num(ModelHiddenSize), heads = num(ModelNumAttentionHeads);
  // If the heads do not divide the hidden size, only this error is reported, not those that follow
  // from it.
  if (hidden > 0 && heads > 0 && hidden % heads == 0)
    derive(ModelKvChannels, hidden / heads, ModelHiddenSize);
}

RULE_IF(QueryGroups, has(ModelNumAttentionHeads),
        derive(ModelNumQueryGroups, cfg()[ModelNumAttentionHeads].value, ModelNumAttentionHeads));

RULE_CODE(FfnSize) {
  int64_t width = 0;
  if (has(ModelHiddenSize) && !__builtin_mul_overflow(num(ModelHiddenSize), 4, &width))
    derive(ModelFfnHiddenSize, width, ModelHiddenSize);
}

RULE_DO(PositionTable,
        derive(ModelMaxPositionEmbeddings, cfg()[ModelSeqLength].value, ModelSeqLength));

RULE_CODE(ExpertSizes) {
  derive(ModelExpertTensorParallelSize, cfg()[ModelTensorModelParallelSize].value,
         ModelTensorModelParallelSize);
  if (has(ModelNumMoeExperts) && has(ModelFfnHiddenSize))
    derive(ModelMoeFfnHiddenSize, cfg()[ModelFfnHiddenSize].value, ModelFfnHiddenSize);
}

RULE_DO(EmbeddingDeviation,
        derive(ModelEmbeddingInitMethodStd, cfg()[ModelInitMethodStd].value, ModelInitMethodStd));
RULE_IF(RecomputeCoreAttention,
        cfg().is(ModelRecomputeGranularity, RecomputeGranularity::Selective),
        derive(ModelRecomputeModules, Value::ofList({Value::ofEnum(RecomputeModule::CoreAttn)}),
               ModelRecomputeGranularity));

/// Upstream moves the first part of all modules, in the order in which they compute.
RULE_CODE(OffloadedLayers) {
  const int64_t layers = std::max<int64_t>(num(ModelNumLayers), 0);
  Value::List entries;
  int64_t left = layers;
  auto add = [&](int64_t count, model::LayerParts parts) {
    count = std::min(count, left);
    left -= count;
    if (count > 0)
      entries.push_back(Value::ofString(model::layerEntry(count, parts, model::kOffloadWords)));
  };
  if (on(ModelCpuOffloading) && on(ModelCpuOffloadingActivations))
    add(num(ModelCpuOffloadingNumLayers), {.isFull = true});
  else if (on(ModelFineGrainedActivationOffloading)) {
    model::LayerParts all;
    if (has(ModelOffloadModules))
      for (OffloadModule module : cfg().getEnums<OffloadModule>(ModelOffloadModules))
        all.modules |= uint32_t{1} << static_cast<int>(module);
    const int64_t each = std::popcount(all.modules);
    auto moved = static_cast<int64_t>(static_cast<double>(layers * each) *
                                      cfg().getFloat(ModelActivationOffloadFraction));
    add(each == 0 ? 0 : moved / each, all);
    model::LayerParts some = all;
    for (int64_t more = each; each > 0 && more > moved % each; --more)
      some.modules &= ~std::bit_floor(some.modules);
    add(some.isNothing() ? 0 : 1, some);
  }
  if (entries.empty())
    return;
  add(left, {});
  derive(ModelOffloadLayers, Value::ofList(std::move(entries)),
         on(ModelCpuOffloading) ? ModelCpuOffloading : ModelFineGrainedActivationOffloading);
}

RULE_CODE(DatasetKind) {
  std::optional<Opt> paths = trainingData(cfg());
  if (!paths)
    return;
  std::optional kind = dataKindOf(lastPath(cfg(), *paths));
  if (!kind && paths == DatasetBlend)
    kind = DatasetKind::Indexed;
  if (kind)
    derive(DatasetKind, *kind, *paths);
}

RULE_CODE(SyntheticData) {
  if (!trainingData(cfg())) // otherwise data-kind-unknown asks
    derive(DatasetKind, DatasetKind::Synthetic);
}

RULE_CODE(DatasetDetails) {
  bool isText = cfg().is(DatasetKind, DatasetKind::Text);
  derive(DatasetTokenizer, isText ? TokenizerKind::Bytes : TokenizerKind::NoTokenizer, DatasetKind);
  if (cfg().is(DatasetTokenizer, TokenizerKind::Bytes))
    derive(DatasetEodToken, kDocumentEnd, DatasetTokenizer);
  derive(DatasetSeqLength, cfg()[ModelSeqLength].value, ModelSeqLength);
  derive(DatasetRandomSeed, cfg()[RngSeed].value, RngSeed);
  if (!has(DatasetTrainDataPath))
    derive(DatasetSplit, Value::ofString("969,30,1"));
}

RULE_IF(VocabularyFromTokenizer, cfg().is(DatasetTokenizer, TokenizerKind::Bytes),
        derive(ModelVocabSize, kBytesVocab, DatasetTokenizer));
RULE_IF(VocabularyLeftOpen, cfg().is(DatasetKind, DatasetKind::Synthetic),
        derive(ModelVocabSize, kStandInVocab));

/// The smallest number of GPUs for the degrees of parallelism: their product, enlarged until a
/// stage also holds a whole number of expert groups. A number of nodes or of GPUs per node that the
/// recipe sets is kept.
RULE_CODE(SmallestMesh) {
  int64_t world = 1;
  for (int64_t degree :
       {d.tensorParallel, d.pipelineParallel, d.contextParallel, d.dataParallelOuter})
    if (__builtin_mul_overflow(world, degree, &world))
      return;
  // Experts use the same GPUs of a stage as dense layers, so a stage must hold whole numbers of
  // both.
  int64_t stage = world / d.pipelineParallel, experts = 0;
  if (__builtin_mul_overflow(d.expertParallel, d.expertTensorParallel, &experts))
    return;
  int64_t factor = experts / std::gcd(stage, experts);
  if (__builtin_mul_overflow(world, factor, &world))
    return;
  if (has(ClusterNodes) || has(ClusterGpusPerNode)) {
    // The written degree is kept; the other one becomes as large as the model needs.
    auto share = [&](Opt written) {
      int64_t number = std::max<int64_t>(num(written), 1);
      return Value::ofInt(world / number + (world % number != 0));
    };
    derive(ClusterNodes, share(ClusterGpusPerNode));
    derive(ClusterGpusPerNode, share(ClusterNodes));
    return;
  }
  derive(ClusterNodes, 1);
  derive(ClusterGpusPerNode, world);
}

RULE_CODE(DeviceMemory) {
  if (!has(ClusterGpu))
    return;
  int64_t bytes = predict::device(cfg().getEnum<Gpu>(ClusterGpu)).memoryBytes;
  if (bytes > 0)
    derive(ClusterMemory, bytes, ClusterGpu);
}

RULE_CODE(GlobalBatchLeftOpen) {
  int64_t batch = 0;
  bool isKnown = !__builtin_mul_overflow(d.microBatch, d.dataParallel, &batch);
  if (std::optional<std::vector<BatchStep>> schedule = scheduleOf(cfg())) {
    derive(TrainGlobalBatchSize, schedule->back().size, TrainStepBatchSizeSchedule);
    if (isKnown) // like upstream, where train.global_batch_size is then unset
      derive(ValidationEvalGlobalBatchSize, batch, TrainMicroBatchSize);
  }
  if (isKnown)
    derive(TrainGlobalBatchSize, batch, TrainMicroBatchSize);
}

RULE_CODE(CheckpointArgs) {
  const std::optional<CheckpointSettings> &saved = cfg().checkpoint();
  Opt model = CheckpointUseCheckpointArgs, parallel = CheckpointUseMpArgsFromCheckpointArgs;
  if (!saved || !on(model))
    return;
  for (const CheckpointSettings::Item &item : saved->model)
    if (item.replaces || !isWritten(item.opt) || !has(item.opt))
      take(item.opt, item.value, model, saved->folder);
  if (on(parallel))
    for (const CheckpointSettings::Item &item : saved->parallel)
      take(item.opt, item.value, parallel, saved->folder);
}

/// Upstream counts a schedule in samples. If the length of the run is in steps, the samples are
/// rounded to steps of the run.
RULE_CODE(CheckpointSchedule) {
  const std::optional<CheckpointSettings> &saved = cfg().checkpoint();
  Opt cause = SchedulerUseCheckpointOptParamScheduler;
  if (!saved || !on(cause))
    return;
  constexpr std::pair<Opt, Opt> kLengths[] = {{SchedulerLrWarmupSamples, SchedulerLrWarmupIters},
                                              {SchedulerLrDecaySamples, SchedulerLrDecayIters}};
  int64_t batch = d.globalBatch;
  for (const CheckpointSettings::Item &item : saved->schedule) {
    Opt opt = item.opt;
    Value value = item.value;
    for (auto [samples, steps] : kLengths)
      if (opt == samples && !has(TrainTrainSamples)) {
        opt = steps;
        value = Value::ofInt((*item.value.asInt() + batch / 2) / batch);
      }
    take(opt, value, cause, saved->folder);
  }
}

RULE_IF(NonPersistentSaves, has(CheckpointNonPersistentSaveInterval) && has(CheckpointSave),
        derive(CheckpointInMemoryInterval, cfg()[CheckpointNonPersistentSaveInterval].value,
               CheckpointNonPersistentSaveInterval));

RULE_CODE(ScheduleLength) {
  derive(OptimizerMinLr, 0.0);
  if (has(TrainTrainIters) && num(TrainTrainIters) > 0)
    derive(SchedulerLrDecayIters, cfg()[TrainTrainIters].value, TrainTrainIters);
}

RULE_IF(StrategyLeftOpen, wantsFsdp(),
        derive(DdpDataParallelShardingStrategy, ShardingStrategy::OptimGradsParams, fsdpFlag()));

RULE_CODE(StrategyWithoutFsdp) {
  bool isDdp = on(DdpUseDistributedOptimizer);
  Opt cause = isDdp ? DdpUseDistributedOptimizer : OptimizerUseDistributedOptimizer;
  if (!wantsFsdp())
    derive(DdpDataParallelShardingStrategy, d.strategy,
           on(cause) ? std::optional(cause) : std::nullopt);
}

RULE_IF(FsdpCheckpointFormatLeftOpen, wantsFsdp(),
        derive(CheckpointCkptFormat, CkptFormat::FsdpDtensor, fsdpFlag()));

RULE_CODE(CheckpointFormatLeftOpen) {
  if (on(DistUseTorchFsdp2))
    derive(CheckpointCkptFormat, CkptFormat::TorchDcp, DistUseTorchFsdp2);
  else
    derive(CheckpointCkptFormat, CkptFormat::TorchDist);
}

RULE_IF(CommOverlapDefaults,
        isWritten(CommOverlapTpCommOverlap) && d.distributedOptimizer && d.dataParallel > 1,
        derive(DdpBucketSize, kOverlapBucket, CommOverlapTpCommOverlap));

} // namespace shardc::config
