// Derives options that the recipe leaves unset. Rules run in the order of the table; each rule sees
// the results of the preceding ones.
#include <numeric>

#include "compiler/config/Effect.h"
#include "compiler/config/RulePredicates.h"

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

void ruleStandInModel(RuleContext &ctx) {
  for (Opt size : {Opt::ModelNumLayers, Opt::ModelHiddenSize, Opt::ModelNumAttentionHeads})
    if (ctx.has(size) || ctx.isWritten(size))
      return;
  ctx.derive(Opt::ModelNumLayers, Value::ofInt(kStandInLayers));
  ctx.derive(Opt::ModelHiddenSize, Value::ofInt(kStandInHidden));
  ctx.derive(Opt::ModelNumAttentionHeads, Value::ofInt(kStandInHeads));
}

void ruleStandInBatch(RuleContext &ctx) { ctx.derive(Opt::TrainMicroBatchSize, Value::ofInt(1)); }

void ruleStandInIterations(RuleContext &ctx) {
  if (!ctx.has(Opt::TrainTrainSamples) && !ctx.has(Opt::TrainNumEpochs))
    ctx.derive(Opt::TrainTrainIters, Value::ofInt(kStandInIterations));
}

void ruleStandInLearningRate(RuleContext &ctx) {
  ctx.derive(Opt::OptimizerLr, Value::ofFloat(kStandInLearningRate));
}

void rulePrecisionTwins(RuleContext &ctx) {
  bool isBf16 = ctx.on(Opt::ModelBf16), isFp16 = ctx.on(Opt::ModelFp16);
  ctx.derive(Opt::OptimizerBf16, Value::ofBool(isBf16), Opt::ModelBf16);
  ctx.derive(Opt::OptimizerFp16, Value::ofBool(isFp16), Opt::ModelFp16);
  FloatType type = isBf16 ? FloatType::Bf16 : isFp16 ? FloatType::Fp16 : FloatType::Fp32;
  Opt cause = isFp16 ? Opt::ModelFp16 : Opt::ModelBf16;
  for (Opt opt : {Opt::ModelParamsDtype, Opt::OptimizerParamsDtype, Opt::ModelPipelineDtype})
    ctx.derive(opt, Value::ofEnum(type), cause);
}

void ruleHeadSize(RuleContext &ctx) {
  int64_t hidden = ctx.num(Opt::ModelHiddenSize), heads = ctx.num(Opt::ModelNumAttentionHeads);
  // If the heads do not divide the hidden size, only this error is reported, not those that follow
  // from it.
  if (hidden > 0 && heads > 0 && hidden % heads == 0)
    ctx.derive(Opt::ModelKvChannels, Value::ofInt(hidden / heads), Opt::ModelHiddenSize);
}

void ruleQueryGroups(RuleContext &ctx) {
  if (ctx.has(Opt::ModelNumAttentionHeads))
    ctx.derive(Opt::ModelNumQueryGroups, ctx.cfg()[Opt::ModelNumAttentionHeads].value,
               Opt::ModelNumAttentionHeads);
}

void ruleFfnSize(RuleContext &ctx) {
  int64_t width = 0;
  if (ctx.has(Opt::ModelHiddenSize) &&
      !__builtin_mul_overflow(ctx.num(Opt::ModelHiddenSize), 4, &width))
    ctx.derive(Opt::ModelFfnHiddenSize, Value::ofInt(width), Opt::ModelHiddenSize);
}

void rulePositionTable(RuleContext &ctx) {
  ctx.derive(Opt::ModelMaxPositionEmbeddings, ctx.cfg()[Opt::ModelSeqLength].value,
             Opt::ModelSeqLength);
}

void ruleExpertSizes(RuleContext &ctx) {
  ctx.derive(Opt::ModelExpertTensorParallelSize, ctx.cfg()[Opt::ModelTensorModelParallelSize].value,
             Opt::ModelTensorModelParallelSize);
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.has(Opt::ModelFfnHiddenSize))
    ctx.derive(Opt::ModelMoeFfnHiddenSize, ctx.cfg()[Opt::ModelFfnHiddenSize].value,
               Opt::ModelFfnHiddenSize);
}

void ruleEmbeddingDeviation(RuleContext &ctx) {
  ctx.derive(Opt::ModelEmbeddingInitMethodStd, ctx.cfg()[Opt::ModelInitMethodStd].value,
             Opt::ModelInitMethodStd);
}

void ruleRecomputeCore(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::ModelRecomputeGranularity, RecomputeGranularity::Selective))
    ctx.derive(Opt::ModelRecomputeModules,
               Value::ofList({Value::ofEnum(RecomputeModule::CoreAttn)}),
               Opt::ModelRecomputeGranularity);
}

void ruleDatasetKindFromPath(RuleContext &ctx) {
  std::optional<Opt> paths = trainingData(ctx.cfg());
  if (!paths)
    return;
  std::optional<DatasetKind> kind = dataKindOf(lastPath(ctx.cfg(), *paths));
  if (!kind && paths == Opt::DatasetBlend)
    kind = DatasetKind::Indexed;
  if (kind)
    ctx.derive(Opt::DatasetKind, Value::ofEnum(*kind), *paths);
}

void ruleSyntheticData(RuleContext &ctx) {
  if (!trainingData(ctx.cfg())) // otherwise data-kind-unknown asks
    ctx.derive(Opt::DatasetKind, Value::ofEnum(DatasetKind::Synthetic));
}

void ruleDatasetDetails(RuleContext &ctx) {
  bool isText = ctx.cfg().is(Opt::DatasetKind, DatasetKind::Text);
  ctx.derive(Opt::DatasetTokenizer,
             Value::ofEnum(isText ? TokenizerKind::Bytes : TokenizerKind::NoTokenizer),
             Opt::DatasetKind);
  if (ctx.cfg().is(Opt::DatasetTokenizer, TokenizerKind::Bytes))
    ctx.derive(Opt::DatasetEodToken, Value::ofInt(kDocumentEnd), Opt::DatasetTokenizer);
  ctx.derive(Opt::DatasetSeqLength, ctx.cfg()[Opt::ModelSeqLength].value, Opt::ModelSeqLength);
  ctx.derive(Opt::DatasetRandomSeed, ctx.cfg()[Opt::RngSeed].value, Opt::RngSeed);
  if (!ctx.has(Opt::DatasetTrainDataPath))
    ctx.derive(Opt::DatasetSplit, Value::ofString("969,30,1"));
}

void ruleVocabFromTokenizer(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::DatasetTokenizer, TokenizerKind::Bytes))
    ctx.derive(Opt::ModelVocabSize, Value::ofInt(kBytesVocab), Opt::DatasetTokenizer);
}

void ruleStandInVocab(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic))
    ctx.derive(Opt::ModelVocabSize, Value::ofInt(kStandInVocab));
}

/// The smallest number of GPUs for the degrees of parallelism: their product, enlarged until a
/// stage also holds a whole number of expert groups. A number of nodes or of GPUs per node that the
/// recipe sets is kept.
void ruleSmallestMesh(RuleContext &ctx) {
  const Derived &d = ctx.derived();
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
  if (ctx.has(Opt::ClusterNodes) || ctx.has(Opt::ClusterGpusPerNode)) {
    // The written degree is kept; the other one becomes as large as the model needs.
    auto share = [&](Opt written) {
      int64_t number = std::max<int64_t>(ctx.num(written), 1);
      return Value::ofInt(world / number + (world % number != 0));
    };
    ctx.derive(Opt::ClusterNodes, share(Opt::ClusterGpusPerNode));
    ctx.derive(Opt::ClusterGpusPerNode, share(Opt::ClusterNodes));
    return;
  }
  ctx.derive(Opt::ClusterNodes, Value::ofInt(1));
  ctx.derive(Opt::ClusterGpusPerNode, Value::ofInt(world));
}

void ruleDeviceMemory(RuleContext &ctx) {
  if (!ctx.has(Opt::ClusterGpu))
    return;
  int64_t bytes = predict::device(ctx.cfg().getEnum<Gpu>(Opt::ClusterGpu)).memoryBytes;
  if (bytes > 0)
    ctx.derive(Opt::ClusterMemory, Value::ofInt(bytes), Opt::ClusterGpu);
}

void ruleGlobalBatch(RuleContext &ctx) {
  int64_t batch = 0;
  bool isKnown =
      !__builtin_mul_overflow(ctx.derived().microBatch, ctx.derived().dataParallel, &batch);
  if (std::optional<std::vector<BatchStep>> schedule = scheduleOf(ctx.cfg())) {
    ctx.derive(Opt::TrainGlobalBatchSize, Value::ofInt(schedule->back().size),
               Opt::TrainStepBatchSizeSchedule);
    if (isKnown) // like upstream, where train.global_batch_size is then unset
      ctx.derive(Opt::ValidationEvalGlobalBatchSize, Value::ofInt(batch), Opt::TrainMicroBatchSize);
  }
  if (isKnown)
    ctx.derive(Opt::TrainGlobalBatchSize, Value::ofInt(batch), Opt::TrainMicroBatchSize);
}

void ruleCheckpointArgs(RuleContext &ctx) {
  const std::optional<CheckpointSettings> &saved = ctx.cfg().checkpoint();
  Opt model = Opt::CheckpointUseCheckpointArgs,
      parallel = Opt::CheckpointUseMpArgsFromCheckpointArgs;
  if (!saved || !ctx.on(model))
    return;
  for (const CheckpointSettings::Item &item : saved->model)
    if (item.replaces || !ctx.isWritten(item.opt) || !ctx.has(item.opt))
      ctx.take(item.opt, item.value, model, saved->folder);
  if (ctx.on(parallel))
    for (const CheckpointSettings::Item &item : saved->parallel)
      ctx.take(item.opt, item.value, parallel, saved->folder);
}

/// Upstream counts a schedule in samples. If the length of the run is in steps, the samples are
/// rounded to steps of the run.
void ruleCheckpointSchedule(RuleContext &ctx) {
  const std::optional<CheckpointSettings> &saved = ctx.cfg().checkpoint();
  Opt cause = Opt::SchedulerUseCheckpointOptParamScheduler;
  if (!saved || !ctx.on(cause))
    return;
  constexpr std::pair<Opt, Opt> kLengths[] = {
      {Opt::SchedulerLrWarmupSamples, Opt::SchedulerLrWarmupIters},
      {Opt::SchedulerLrDecaySamples, Opt::SchedulerLrDecayIters}};
  int64_t batch = ctx.derived().globalBatch;
  for (const CheckpointSettings::Item &item : saved->schedule) {
    Opt opt = item.opt;
    Value value = item.value;
    for (auto [samples, steps] : kLengths)
      if (opt == samples && !ctx.has(Opt::TrainTrainSamples)) {
        opt = steps;
        value = Value::ofInt((*item.value.asInt() + batch / 2) / batch);
      }
    ctx.take(opt, value, cause, saved->folder);
  }
}

void ruleNonPersistentSaves(RuleContext &ctx) {
  Opt interval = Opt::CheckpointNonPersistentSaveInterval;
  if (ctx.has(interval) && ctx.has(Opt::CheckpointSave))
    ctx.derive(Opt::CheckpointInMemoryInterval, ctx.cfg()[interval].value, interval);
}

void ruleScheduleLength(RuleContext &ctx) {
  ctx.derive(Opt::OptimizerMinLr, Value::ofFloat(0));
  if (ctx.has(Opt::TrainTrainIters) && ctx.num(Opt::TrainTrainIters) > 0)
    ctx.derive(Opt::SchedulerLrDecayIters, ctx.cfg()[Opt::TrainTrainIters].value,
               Opt::TrainTrainIters);
}

void ruleStrategyLeftOpen(RuleContext &ctx) {
  if (ctx.wantsFsdp())
    ctx.derive(Opt::DdpDataParallelShardingStrategy,
               Value::ofEnum(ShardingStrategy::OptimGradsParams), ctx.fsdpFlag());
}

void ruleStrategyWithoutFsdp(RuleContext &ctx) {
  bool isDdp = ctx.on(Opt::DdpUseDistributedOptimizer);
  Opt cause = isDdp ? Opt::DdpUseDistributedOptimizer : Opt::OptimizerUseDistributedOptimizer;
  if (!ctx.wantsFsdp())
    ctx.derive(Opt::DdpDataParallelShardingStrategy, Value::ofEnum(ctx.derived().strategy),
               ctx.on(cause) ? std::optional(cause) : std::nullopt);
}

void ruleFsdpCkptFormat(RuleContext &ctx) {
  if (ctx.wantsFsdp())
    ctx.derive(Opt::CheckpointCkptFormat, Value::ofEnum(CkptFormat::FsdpDtensor), ctx.fsdpFlag());
}

void ruleCkptFormat(RuleContext &ctx) {
  if (ctx.on(Opt::DistUseTorchFsdp2))
    ctx.derive(Opt::CheckpointCkptFormat, Value::ofEnum(CkptFormat::TorchDcp),
               Opt::DistUseTorchFsdp2);
  else
    ctx.derive(Opt::CheckpointCkptFormat, Value::ofEnum(CkptFormat::TorchDist));
}

void ruleCommOverlapDefaults(RuleContext &ctx) {
  bool isActive = ctx.isWritten(Opt::CommOverlapTpCommOverlap) &&
                  ctx.derived().distributedOptimizer && ctx.derived().dataParallel > 1;
  if (isActive)
    ctx.derive(Opt::DdpBucketSize, Value::ofInt(kOverlapBucket), Opt::CommOverlapTpCommOverlap);
}

} // namespace shardc::config
