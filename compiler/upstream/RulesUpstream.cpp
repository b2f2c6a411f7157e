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
    return true; // ruleWithoutEffect remarks it
  bool isHost = ctx.derived().gpu && predict::device(*ctx.derived().gpu).isHost();
  return opt == Opt::DdpReduceScatterWithFp32Accumulation &&
         (isHost || ctx.on(Opt::ModelDeterministicMode));
}

bool shardsGradients(const RuleContext &ctx) {
  return ctx.wantsFsdp() && ctx.derived().strategy >= ShardingStrategy::OptimGrads;
}

} // namespace

void ruleOptionNotExecuted(RuleContext &ctx) {
  for (const OptionInfo &option : options()) {
    Origin origin = ctx.cfg()[option.opt].from.origin;
    bool isSet = ctx.has(option.opt) && origin != Origin::Default && origin != Origin::Derived &&
                 origin != Origin::Rule;
    if (option.status != OptionStatus::NotExecuted || !isSet || isHonoured(ctx, option.opt))
      continue;
    std::string needed = neededText(ctx, option);
    if (plainText(ctx.cfg()[option.opt].value, option.type) != needed)
      ctx.report({option.opt},
                 {pathOf(option.opt), arg(ctx, option.opt), DiagArg(needed), DiagArg(option.why)})
          .fix(ctx.fixRemove(option.opt, FixItKind::Alternative));
  }
}

void ruleCheckedOnly(RuleContext &ctx) {
  for (const OptionInfo &option : options())
    if (option.status == OptionStatus::CheckedOnly && ctx.isWritten(option.opt) &&
        ctx.has(option.opt))
      ctx.reportAt(ctx.cfg()[option.opt].from.name, {pathOf(option.opt)});
}

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

void ruleWithoutEffect(RuleContext &ctx) { reportWithoutEffect(ctx, /*areLeftBehind=*/false); }

void ruleLeftBehind(RuleContext &ctx) { reportWithoutEffect(ctx, /*areLeftBehind=*/true); }

void ruleDeadOption(RuleContext &ctx) {
  Opt never = Opt::DdpEnableFullShardingInHsdp; // upstream never reads it
  if (ctx.on(never))
    ctx.report({never}, {pathOf(never)}).fix(ctx.fixRemove(never, FixItKind::Recommended));
  for (Opt opt : kDeadUnderFsdp)
    if (ctx.wantsFsdp() && ctx.on(opt))
      ctx.report({ctx.fsdpFlag(), opt}, {pathOf(opt)})
          .fix(ctx.fixRemove(opt, FixItKind::Recommended));
  Opt map = Opt::CheckpointDumpParamToParamGroupMap;
  if (ctx.wantsFsdp() && ctx.has(map))
    ctx.report({ctx.fsdpFlag(), map}, {pathOf(map)});
}

void ruleMetaNoShard(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(Opt::ModelInitModelWithMetaDevice) &&
      ctx.derived().strategy == ShardingStrategy::NoShard)
    ctx.report({Opt::ModelInitModelWithMetaDevice, kStrategy});
}

void ruleFsdpPipeline(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.derived().pipelineParallel > 1 && !isVersion2(ctx))
    ctx.report({ctx.fsdpFlag(), Opt::ModelPipelineModelParallelSize},
               {ctx.derived().pipelineParallel});
}

void ruleSingleRankGroup(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!shardsGradients(ctx) || d.numMicrobatches < 2 || ctx.on(Opt::ModelCalculatePerTokenLoss))
    return;
  if (d.shardGroup == 1)
    ctx.report({kStrategy, Opt::ClusterGpusPerNode, Opt::ClusterNodes}, {DiagArg("the model")});
  else if (ctx.has(Opt::ModelNumMoeExperts) && d.expertDataParallel / d.dataParallelOuter <= 1)
    ctx.report({kStrategy, Opt::ModelExpertModelParallelSize}, {DiagArg("experts")});
}

void ruleBlockingHsdp(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.wantsFsdp() && d.dataParallelOuter > 1 && d.strategy <= ShardingStrategy::Optim &&
      !ctx.on(Opt::DdpOverlapGradReduce))
    ctx.report({Opt::DdpNumDistributedOptimizerInstances, Opt::DdpOverlapGradReduce},
               {d.dataParallelOuter})
        .fix(ctx.fixSet(Opt::DdpOverlapGradReduce, Value::ofBool(true), FixItKind::Recommended));
}

void ruleNanCheckIgnored(RuleContext &ctx) {
  bool isBlocking = ctx.wantsFsdp() && ctx.derived().strategy <= ShardingStrategy::Optim &&
                    !ctx.on(Opt::DdpOverlapGradReduce);
  if (ctx.wantsFsdp() && ctx.on(Opt::DdpCheckForNanInGrad) && !isBlocking)
    ctx.report({Opt::DdpCheckForNanInGrad});
}

void ruleHfsdpNorm(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.derived().outerStrategy == OuterStrategy::Optim &&
      ctx.derived().dataParallelOuter > 1)
    ctx.report({Opt::DdpOuterDpShardingStrategy});
}

void ruleDecoupledGradLost(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || isVersion2(ctx) || !ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer))
    return;
  for (Opt opt : {Opt::ModelSequenceParallel, Opt::ModelQkLayernorm})
    if (ctx.on(opt) && ctx.derived().tensorParallel > 1)
      ctx.report({Opt::OptimizerUsePrecisionAwareOptimizer, opt}, {pathOf(opt)});
}

void ruleCommunicationFloor(RuleContext &ctx) {
  constexpr int64_t kFloor = 1'000'000'000;
  Opt size = Opt::DdpSuggestedCommunicationUnitSize;
  if (ctx.wantsFsdp() && !isVersion2(ctx) && ctx.has(size) && ctx.num(size) < kFloor)
    ctx.report({size}, {arg(ctx, size)});
}

void ruleDoubleBufferUneven(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || !ctx.on(Opt::DdpFsdpDoubleBuffer) ||
      ctx.on(Opt::DdpMegatronFsdpMaxPoolDoubleBuffer))
    return;
  bool hasDenseLayers = ctx.has(Opt::ModelNumMoeExperts) && ctx.has(Opt::ModelMoeLayerFreq);
  for (auto [opt, isUneven] : {std::pair(Opt::ModelMoeLayerFreq, hasDenseLayers),
                               std::pair(Opt::ModelMtpNumLayers, ctx.has(Opt::ModelMtpNumLayers))})
    if (isUneven)
      ctx.report({Opt::DdpFsdpDoubleBuffer, opt}, {pathOf(opt)});
}

void ruleExpertAverage(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t dense = d.dataParallel * d.contextParallel;
  if (ctx.on(Opt::DdpAverageInCollective) && ctx.has(Opt::ModelNumMoeExperts) &&
      d.expertDataParallel != dense)
    ctx.report({Opt::DdpAverageInCollective, Opt::ModelExpertModelParallelSize},
               {d.expertDataParallel, dense})
        .fix(ctx.fixSet(Opt::DdpAverageInCollective, Value::ofBool(false), FixItKind::Recommended));
}

void ruleInstancesIdle(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.dataParallelOuter > 1 && !ctx.wantsFsdp() && !d.distributedOptimizer && !d.torchFsdp2)
    ctx.report({Opt::DdpNumDistributedOptimizerInstances}, {d.dataParallelOuter})
        .fix(ctx.fixRemove(Opt::DdpNumDistributedOptimizerInstances, FixItKind::Alternative));
}

void ruleDoubleBufferIdle(RuleContext &ctx) {
  Opt buffer = Opt::DdpFsdpDoubleBuffer;
  if (ctx.wantsFsdp() && ctx.on(buffer) && ctx.derived().strategy == ShardingStrategy::NoShard)
    ctx.report({buffer, kStrategy}).fix(ctx.fixRemove(buffer, FixItKind::Recommended));
}

void ruleRegisteredEnvironment(RuleContext &ctx) {
  if (!ctx.on(Opt::DdpNcclUb))
    return;
  for (auto [opt, forced] : {std::pair(Opt::EnvNcclNvlsEnable, "1"),
                             std::pair(Opt::EnvTorchNcclUseTensorRegisterAllocatorHook, "0")})
    if (ctx.has(opt) && ctx.cfg().getString(opt) != forced)
      ctx.report({opt, Opt::DdpNcclUb}, {DiagArg(info(opt).name), arg(ctx, opt), DiagArg(forced)});
}

void ruleAsyncSaveLibrary(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(Opt::CheckpointAsyncSave) &&
      ctx.cfg().is(Opt::CheckpointAsyncStrategy, AsyncStrategy::Nvrx) &&
      ctx.cfg().is(Opt::CheckpointCkptFormat, CkptFormat::FsdpDtensor))
    ctx.report({Opt::CheckpointAsyncSave, Opt::CheckpointCkptFormat});
}

void ruleNonStrictLoad(RuleContext &ctx) {
  Opt cause = ctx.has(Opt::ModelFp8) ? Opt::ModelFp8 : Opt::ModelGatedLinearUnit;
  if (ctx.wantsFsdp() && ctx.has(Opt::CheckpointLoad) && (cause == Opt::ModelFp8 || ctx.on(cause)))
    ctx.report({Opt::CheckpointLoad}, {pathOf(cause)});
}

void ruleNoShardHybrid(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.wantsFsdp() && d.dataParallelOuter > 1 && d.strategy == ShardingStrategy::NoShard &&
      d.outerStrategy == OuterStrategy::NoShard)
    ctx.report({Opt::DdpNumDistributedOptimizerInstances, kStrategy}, {d.dataParallelOuter});
}

void ruleBucketSizeDropped(RuleContext &ctx) {
  Opt size = Opt::DdpBucketSize, overlap = Opt::DdpOverlapGradReduce;
  bool isForced = ctx.cfg()[overlap].from.origin == Origin::Rule;
  if (ctx.isWritten(size) && ctx.has(size) && (!ctx.on(overlap) || isForced))
    ctx.report({size, overlap}, {ctx.num(size)})
        .fix(ctx.fixSet(overlap, Value::ofBool(true), FixItKind::Recommended));
}

void ruleConvertedMtp(RuleContext &ctx) {
  Opt layers = Opt::ModelMtpNumLayers;
  if (ctx.wantsFsdp() && ctx.num(layers) > 0 &&
      (ctx.has(Opt::CheckpointLoad) || ctx.has(Opt::CheckpointPretrainedCheckpoint)))
    ctx.report({layers, Opt::CheckpointLoad}, {ctx.num(layers)});
}

void ruleOptimizerNotSaved(RuleContext &ctx) {
  if (ctx.has(Opt::CheckpointSave) && !ctx.on(Opt::CheckpointSaveOptim))
    ctx.report({Opt::CheckpointSaveOptim, Opt::CheckpointSave});
}

} // namespace shardc::config
