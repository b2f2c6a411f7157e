// Rules about upstream's silent behaviour: options without effect, and results that differ from
// shardc's.
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kStrategy = Opt::DdpDataParallelShardingStrategy;

/// Options that upstream accepts but does not read under Megatron FSDP.
constexpr Opt kDeadUnderFsdp[] = {Opt::DdpPadBucketsForHighNcclBusbw,
                                  Opt::DdpReduceScatterWithFp32Accumulation,
                                  Opt::DdpCheckForLargeGrads};

/// Pairs of an option that is not executed, and the option whose value it has while it is unset.
constexpr std::pair<Opt, Opt> kFollowed[] = {
    {Opt::DatasetSeqLength, Opt::ModelSeqLength},
    {Opt::SchedulerMaxSteps, Opt::TrainTrainIters},
    {Opt::ModelTensorParallelNumWeightShards, Opt::ModelTensorModelParallelSize},
    {Opt::ModelExpertTensorParallelNumWeightShards, Opt::ModelExpertTensorParallelSize},
};

/// The value that shardc uses for the option, as text.
std::string neededText(const RuleContext &ctx, const OptionInfo &option) {
  if (option.opt == Opt::ModelLogitDtype || option.opt == Opt::ModelPipelineDtype)
    return ctx.on(Opt::ModelBf16) ? "bf16" : ctx.on(Opt::ModelFp16) ? "fp16" : "fp32";
  for (auto [opt, followed] : kFollowed)
    if (opt == option.opt && ctx.has(followed))
      return ctx.text(followed);
  return option.hasDefault() ? plainText(tableDefault(option.opt), option.type) : "unset";
}

/// Whether the option needs no report here: another rule reports it, or shardc does what it says.
bool isHonoured(const RuleContext &ctx, Opt opt) {
  if (ctx.wantsFsdp() && llvm::is_contained(kDeadUnderFsdp, opt))
    return true; // ruleDeadOption warns
  if (!hasEffect(ctx.cfg(), info(opt)))
    return true; // ruleOptionWithoutEffect remarks it
  bool isHost = ctx.derived().gpu && predict::device(*ctx.derived().gpu).isHost();
  return opt == Opt::DdpReduceScatterWithFp32Accumulation &&
         (isHost || ctx.on(Opt::ModelDeterministicMode));
}

bool shardsGradients(const RuleContext &ctx) {
  return ctx.wantsFsdp() && ctx.derived().strategy >= ShardingStrategy::OptimGrads;
}

} // namespace

RULE_CODE(OptionNotExecuted) {
  for (const OptionInfo &option : options()) {
    Origin origin = cfg()[option.opt].from.origin;
    bool isSet = has(option.opt) && origin != Origin::Default && origin != Origin::Derived &&
                 origin != Origin::Rule;
    if (option.status != OptionStatus::NotExecuted || !isSet || isHonoured(ctx, option.opt))
      continue;
    std::string needed = neededText(ctx, option);
    if (plainText(cfg()[option.opt].value, option.type) != needed)
      report({option.opt},
             {pathOf(option.opt), text(option.opt), DiagArg(needed), DiagArg(option.why)})
          .remove(option.opt, Alternative);
  }
}

static void reportIgnored(RuleContext &ctx, bool saves) {
  for (const OptionInfo &option : options())
    if (option.status == OptionStatus::CheckedOnly && ctx.isWritten(option.opt) &&
        ctx.has(option.opt) && isSavingIgnored(ctx.cfg(), option) == saves)
      ctx.reportAt(ctx.cfg()[option.opt].from.name, {pathOf(option.opt), DiagArg(summary(option))});
}

RULE_DO(CheckedOnly, reportIgnored(ctx, /*saves=*/false));
RULE_DO(SavingIgnored, reportIgnored(ctx, /*saves=*/true));

static void reportWithoutEffect(RuleContext &ctx, bool areLeftBehind) {
  for (const OptionInfo &option : options()) {
    if (option.with.empty() || !ctx.isWritten(option.opt) || !ctx.has(option.opt))
      continue;
    bool isDefault = ctx.cfg()[option.opt].value == tableDefault(option.opt);
    bool isLeft = isLeftBehind(ctx.cfg(), option);
    bool isRefused = option.section == Section::Peft && !isLeft; // by peft-without-scheme
    if (!isDefault && !isRefused && !hasEffect(ctx.cfg(), option) && isLeft == areLeftBehind)
      ctx.reportAt(ctx.cfg()[option.opt].from.name,
                   {pathOf(option.opt), DiagArg(describeNeeds(option))});
  }
}

RULE_DO(OptionWithoutEffect, reportWithoutEffect(ctx, /*areLeftBehind=*/false));
RULE_DO(OptionLeftBehind, reportWithoutEffect(ctx, /*areLeftBehind=*/true));

RULE_CODE(DeadOption) {
  Opt never = DdpEnableFullShardingInHsdp; // upstream never reads it
  if (on(never))
    report({never}, {pathOf(never)}).remove(never, Recommended);
  for (Opt opt : kDeadUnderFsdp)
    if (wantsFsdp() && on(opt))
      report({fsdpFlag(), opt}, {pathOf(opt)}).remove(opt, Recommended);
  Opt map = CheckpointDumpParamToParamGroupMap;
  if (wantsFsdp() && has(map))
    report({fsdpFlag(), map}, {pathOf(map)});
}

RULE_IF(MetaDeviceNoShard,
        wantsFsdp() && on(ModelInitModelWithMetaDevice) && d.strategy == ShardingStrategy::NoShard,
        report({ModelInitModelWithMetaDevice, kStrategy}));
RULE_IF(FsdpPipeline, wantsFsdp() && d.pipelineParallel > 1 && !isVersion2(ctx),
        report({fsdpFlag(), ModelPipelineModelParallelSize}, {d.pipelineParallel}));

RULE_CODE(SingleRankGroup) {
  if (!shardsGradients(ctx) || d.numMicrobatches < 2 || on(ModelCalculatePerTokenLoss))
    return;
  if (d.shardGroup == 1)
    report({kStrategy, ClusterGpusPerNode, ClusterNodes}, {DiagArg("the model")});
  else if (has(ModelNumMoeExperts) && d.expertDataParallel / d.dataParallelOuter <= 1)
    report({kStrategy, ModelExpertModelParallelSize}, {DiagArg("experts")});
}

RULE_IF(BlockingHsdp,
        wantsFsdp() && d.dataParallelOuter > 1 && d.strategy <= ShardingStrategy::Optim &&
            !on(DdpOverlapGradReduce),
        report({DdpNumDistributedOptimizerInstances, DdpOverlapGradReduce}, {d.dataParallelOuter})
            .set(DdpOverlapGradReduce, true, Recommended));
RULE_IF(NanCheckIgnored,
        wantsFsdp() && on(DdpCheckForNanInGrad) &&
            (d.strategy > ShardingStrategy::Optim || on(DdpOverlapGradReduce)),
        report({DdpCheckForNanInGrad}));
RULE_IF(OuterShardedNorm,
        wantsFsdp() && d.outerStrategy == OuterStrategy::Optim && d.dataParallelOuter > 1,
        report({DdpOuterDpShardingStrategy}));

RULE_CODE(DecoupledGradLost) {
  if (!wantsFsdp() || isVersion2(ctx) || !on(OptimizerUsePrecisionAwareOptimizer))
    return;
  for (Opt opt : {ModelSequenceParallel, ModelQkLayernorm})
    if (on(opt) && d.tensorParallel > 1)
      report({OptimizerUsePrecisionAwareOptimizer, opt}, {pathOf(opt)});
}

RULE_CODE(CommunicationUnitFloor) {
  constexpr int64_t kFloor = 1'000'000'000;
  Opt size = DdpSuggestedCommunicationUnitSize;
  if (wantsFsdp() && !isVersion2(ctx) && has(size) && num(size) < kFloor)
    report({size}, {text(size)});
}

RULE_CODE(DoubleBufferUneven) {
  if (!wantsFsdp() || !on(DdpFsdpDoubleBuffer) || on(DdpMegatronFsdpMaxPoolDoubleBuffer))
    return;
  bool hasDenseLayers = has(ModelNumMoeExperts) && has(ModelMoeLayerFreq);
  for (auto [opt, isUneven] : {std::pair(ModelMoeLayerFreq, hasDenseLayers),
                               std::pair(ModelMtpNumLayers, has(ModelMtpNumLayers))})
    if (isUneven)
      report({DdpFsdpDoubleBuffer, opt}, {pathOf(opt)});
}

RULE_CODE(ExpertAverage) {
  int64_t dense = d.dataParallel * d.contextParallel;
  if (on(DdpAverageInCollective) && has(ModelNumMoeExperts) && d.expertDataParallel != dense)
    report({DdpAverageInCollective, ModelExpertModelParallelSize}, {d.expertDataParallel, dense})
        .set(DdpAverageInCollective, false, Recommended);
}

RULE_IF(InstancesWithoutSharding,
        d.dataParallelOuter > 1 && !wantsFsdp() && !d.distributedOptimizer && !d.torchFsdp2,
        report({DdpNumDistributedOptimizerInstances}, {d.dataParallelOuter})
            .remove(DdpNumDistributedOptimizerInstances, Alternative));
RULE_IF(DoubleBufferWithoutUnits,
        wantsFsdp() && on(DdpFsdpDoubleBuffer) && d.strategy == ShardingStrategy::NoShard,
        report({DdpFsdpDoubleBuffer, kStrategy}).remove(DdpFsdpDoubleBuffer, Recommended));

RULE_CODE(RegisteredBuffersEnvironment) {
  if (!on(DdpNcclUb))
    return;
  for (auto [opt, forced] : {std::pair(EnvNcclNvlsEnable, "1"),
                             std::pair(EnvTorchNcclUseTensorRegisterAllocatorHook, "0")})
    if (has(opt) && cfg().getString(opt) != forced)
      report({opt, DdpNcclUb}, {DiagArg(info(opt).name), text(opt), DiagArg(forced)});
}

RULE_IF(AsyncSaveLibrary,
        wantsFsdp() && on(CheckpointAsyncSave) &&
            cfg().is(CheckpointAsyncStrategy, AsyncStrategy::Nvrx) &&
            cfg().is(CheckpointCkptFormat, CkptFormat::FsdpDtensor),
        report({CheckpointAsyncSave, CheckpointCkptFormat}));

RULE_CODE(NonStrictLoad) {
  Opt cause = has(ModelFp8) ? ModelFp8 : ModelGatedLinearUnit;
  if (wantsFsdp() && has(CheckpointLoad) && (cause == ModelFp8 || on(cause)))
    report({CheckpointLoad}, {pathOf(cause)});
}

RULE_IF(NoShardHybrid,
        wantsFsdp() && d.dataParallelOuter > 1 && d.strategy == ShardingStrategy::NoShard &&
            d.outerStrategy == OuterStrategy::NoShard,
        report({DdpNumDistributedOptimizerInstances, kStrategy}, {d.dataParallelOuter}));
RULE_IF(BucketSizeDropped,
        isWritten(DdpBucketSize) && has(DdpBucketSize) &&
            (!on(DdpOverlapGradReduce) || cfg()[DdpOverlapGradReduce].from.origin == Origin::Rule),
        report({DdpBucketSize, DdpOverlapGradReduce}, {num(DdpBucketSize)})
            .set(DdpOverlapGradReduce, true, Recommended));
RULE_IF(ConvertedMtp,
        wantsFsdp() && num(ModelMtpNumLayers) > 0 &&
            (has(CheckpointLoad) || has(CheckpointPretrainedCheckpoint)),
        report({ModelMtpNumLayers, CheckpointLoad}, {num(ModelMtpNumLayers)}));
RULE_IF(OptimizerNotSaved, has(CheckpointSave) && !on(CheckpointSaveOptim),
        report({CheckpointSaveOptim, CheckpointSave}));

} // namespace shardc::config
