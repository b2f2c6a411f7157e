// Rules on the data-parallel scheme and its settings.
#include "compiler/config/RulePredicates.h"
#include "llvm/ADT/STLExtras.h"

#include <array>

namespace shardc::config {

namespace {

constexpr Opt kStrategy = Opt::DdpDataParallelShardingStrategy;

/// Whether a device has only one hardware queue. Like upstream, compares the value with exactly
/// "1".
bool hasOneConnection(const RuleContext &ctx) {
  const std::string *value = ctx.variable("CUDA_DEVICE_MAX_CONNECTIONS");
  return value && *value == "1";
}

void reportOneConnection(RuleContext &ctx, Opt cause) {
  ctx.report({cause, Opt::EnvCudaDeviceMaxConnections})
      .fix(ctx.fixRemove(Opt::EnvCudaDeviceMaxConnections));
}

/// A fix-it that switches off every flag of Megatron FSDP that was written.
std::optional<FixIt> fixFsdpOff(const RuleContext &ctx) {
  std::optional<FixIt> all;
  for (Opt flag : {Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp, Opt::DdpUseCustomFsdp}) {
    if (!ctx.on(flag) || !ctx.isWritten(flag))
      continue;
    std::optional<FixIt> fix = ctx.fixSet(flag, Value::ofBool(false), FixItKind::Alternative);
    if (!fix)
      return std::nullopt; // a partial fix would only cause another error
    if (all)
      llvm::append_range(all->edits, fix->edits);
    else
      all = std::move(fix);
  }
  return all;
}

/// The tensor- or context-parallel size if it is above one.
std::optional<Opt> splitDegree(const RuleContext &ctx) {
  if (ctx.derived().tensorParallel > 1)
    return Opt::ModelTensorModelParallelSize;
  if (ctx.derived().contextParallel > 1)
    return Opt::ModelContextParallelSize;
  return std::nullopt;
}

bool isBeforeBlackwell(const RuleContext &ctx) {
  return ctx.derived().gpu && predict::device(*ctx.derived().gpu).isBeforeBlackwell();
}

} // namespace

void ruleFsdpFlagsContradict(RuleContext &ctx) {
  Opt dist = Opt::DistUseMegatronFsdp, ddp = Opt::DdpUseMegatronFsdp;
  Opt custom = Opt::DdpUseCustomFsdp; // the old name of `ddp`
  bool isOther = ctx.on(dist) != ctx.on(ddp), isOld = ctx.on(custom) && !ctx.on(ddp);
  if (!isOther && !isOld)
    return;
  auto [isOn, isOff] = !isOther       ? std::pair(custom, ddp)
                       : ctx.on(dist) ? std::pair(dist, ddp)
                                      : std::pair(ddp, dist);
  ctx.report({isOn, isOff}, {pathOf(isOn), pathOf(isOff)})
      .fix(ctx.fixSet(isOff, Value::ofBool(true), FixItKind::Alternative))
      .fix(ctx.fixSet(isOn, Value::ofBool(false), FixItKind::Alternative));
}

void ruleFsdpAndTorchFsdp2(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || !ctx.on(Opt::DistUseTorchFsdp2))
    return;
  ctx.report({ctx.fsdpFlag(), Opt::DistUseTorchFsdp2})
      .fix(ctx.fixSet(Opt::DistUseTorchFsdp2, Value::ofBool(false), FixItKind::Alternative))
      .fix(fixFsdpOff(ctx));
}

void ruleFsdpRankOrder(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || !ctx.on(Opt::DistUseTpPpDpMapping))
    return;
  ctx.report({ctx.fsdpFlag(), Opt::DistUseTpPpDpMapping})
      .fix(ctx.fixRemove(Opt::DistUseTpPpDpMapping))
      .note(diag::StandardRankOrder, ctx.cfg().range(Opt::DistUseTpPpDpMapping));
}

void ruleFsdpCkptFormatOnly(RuleContext &ctx) {
  Opt format = Opt::CheckpointCkptFormat;
  // Version 2 supports no checkpoints at all; a rule of its own reports that.
  if (!ctx.wantsFsdp() || isVersion2(ctx) || ctx.cfg().is(format, CkptFormat::FsdpDtensor))
    return;
  ctx.report({ctx.fsdpFlag(), format})
      .fix(ctx.fixSet(format, Value::ofEnum(CkptFormat::FsdpDtensor)));
}

void ruleCkptFormatNeedsFsdp(RuleContext &ctx) {
  Opt format = Opt::CheckpointCkptFormat;
  if (ctx.wantsFsdp() || !ctx.cfg().is(format, CkptFormat::FsdpDtensor))
    return;
  ctx.report({format})
      .fix(ctx.fixSet(format, Value::ofEnum(CkptFormat::TorchDist), FixItKind::Alternative))
      .fix(ctx.fixSet(Opt::DistUseMegatronFsdp, Value::ofBool(true), FixItKind::Alternative));
}

void ruleFsdpMaxConnections(RuleContext &ctx) {
  if (ctx.wantsFsdp() && hasOneConnection(ctx))
    reportOneConnection(ctx, ctx.fsdpFlag());
}

void ruleFsdp2MaxConnections(RuleContext &ctx) {
  if (ctx.on(Opt::DistUseTorchFsdp2) && !ctx.wantsFsdp() && hasOneConnection(ctx))
    reportOneConnection(ctx, Opt::DistUseTorchFsdp2);
}

void ruleFsdpVersion(RuleContext &ctx) {
  int64_t version = ctx.num(Opt::DdpMegatronFsdpVersion);
  if (version != 1 && version != 2)
    ctx.report({Opt::DdpMegatronFsdpVersion}, {version});
}

void ruleFsdpOptimizer(RuleContext &ctx) {
  Opt kind = Opt::OptimizerOptimizer;
  constexpr std::array kExecuted = {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon,
                                    OptimizerKind::DistMuon};
  bool isExecuted = llvm::is_contained(kExecuted, ctx.cfg().getEnumOr(kind, OptimizerKind::Adam));
  if (ctx.wantsFsdp() && !isExecuted)
    ctx.report({ctx.fsdpFlag(), kind}, {arg(ctx, kind)});
}

void ruleFsdpHybridContext(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(Opt::ModelHybridContextParallel))
    ctx.report({ctx.fsdpFlag(), Opt::ModelHybridContextParallel});
}

void ruleFsdpSingleGrouped(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelMoeSingleGroupedWeight, Opt::ModelMoeSingleGroupedBias})
    if (ctx.wantsFsdp() && ctx.on(opt))
      ctx.report({ctx.fsdpFlag(), opt}).fix(ctx.fixRemove(opt));
}

void ruleFsdpVirtualStages(RuleContext &ctx) {
  bool isOwn = ctx.cfg().is(Opt::ModelPipelineSchedule, PipelineSchedule::Interleaved);
  if (ctx.wantsFsdp() && ctx.derived().virtualStages > 1 && !isOwn)
    ctx.report({ctx.fsdpFlag(), Opt::ModelVirtualPipelineModelParallelSize},
               {ctx.derived().virtualStages})
        .note(diag::OwnInterleaved, ctx.cfg().range(Opt::ModelVirtualPipelineModelParallelSize));
}

void ruleFsdpWeightHash(RuleContext &ctx) {
  Opt interval = Opt::TrainCheckWeightHashAcrossDpReplicasInterval;
  if (ctx.wantsFsdp() && ctx.has(interval) &&
      ctx.derived().strategy == ShardingStrategy::OptimGradsParams)
    ctx.report({kStrategy, interval}).fix(ctx.fixRemove(interval));
}

void ruleFsdpManualRegistration(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(Opt::DdpFsdpManualRegistration) && !ctx.on(Opt::DdpNcclUb))
    ctx.report({Opt::DdpFsdpManualRegistration, Opt::DdpNcclUb})
        .fix(ctx.fixSet(Opt::DdpNcclUb, Value::ofBool(true), FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::DdpFsdpManualRegistration, FixItKind::Alternative));
}

void ruleRegistrationNeedsFsdp(RuleContext &ctx) {
  if (!ctx.wantsFsdp() && ctx.on(Opt::DdpFsdpManualRegistration))
    ctx.report({Opt::DdpFsdpManualRegistration}).fix(ctx.fixRemove(Opt::DdpFsdpManualRegistration));
}

void ruleNcclUbExpandable(RuleContext &ctx) {
  const std::string *value = ctx.variable("PYTORCH_CUDA_ALLOC_CONF");
  if (!ctx.on(Opt::DdpNcclUb) || !value)
    return;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  llvm::StringRef(*value).split(parts, ',');
  if (llvm::is_contained(parts, "expandable_segments:True"))
    ctx.report({Opt::DdpNcclUb, Opt::EnvPytorchCudaAllocConf});
}

void ruleOuterNeedsInner(RuleContext &ctx) {
  Opt outer = Opt::DdpOuterDpShardingStrategy;
  if (ctx.wantsFsdp() && ctx.derived().outerStrategy == OuterStrategy::Optim &&
      ctx.derived().strategy != ShardingStrategy::OptimGradsParams)
    ctx.report({outer, kStrategy}, {arg(ctx, kStrategy)})
        .fix(ctx.fixSet(kStrategy, Value::ofEnum(ShardingStrategy::OptimGradsParams),
                        FixItKind::Alternative))
        .fix(ctx.fixSet(outer, Value::ofEnum(OuterStrategy::NoShard), FixItKind::Alternative));
}

void ruleOuterNeedsInstances(RuleContext &ctx) {
  Opt outer = Opt::DdpOuterDpShardingStrategy, instances = Opt::DdpNumDistributedOptimizerInstances;
  if (ctx.wantsFsdp() && ctx.derived().outerStrategy == OuterStrategy::Optim &&
      ctx.derived().dataParallelOuter < 2)
    ctx.report({outer, instances}, {ctx.derived().dataParallelOuter});
}

void ruleBucketsTwice(RuleContext &ctx) {
  if (ctx.has(Opt::DdpNumBuckets) && ctx.has(Opt::DdpBucketSize))
    ctx.report({Opt::DdpNumBuckets, Opt::DdpBucketSize})
        .fix(ctx.fixRemove(Opt::DdpNumBuckets, FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::DdpBucketSize, FixItKind::Alternative));
}

void ruleBucketsPositive(RuleContext &ctx) {
  if (ctx.has(Opt::DdpNumBuckets) && ctx.num(Opt::DdpNumBuckets) <= 0)
    ctx.report({Opt::DdpNumBuckets}, {ctx.num(Opt::DdpNumBuckets)});
}

void ruleLocalAccumulationPatterns(RuleContext &ctx) {
  Opt patterns = Opt::DdpParamNamePatternsForFp32LocalAccumulation;
  if (ctx.has(patterns) && !ctx.cfg().getList(patterns).empty() && ctx.on(Opt::DdpGradReduceInFp32))
    ctx.report({patterns, Opt::DdpGradReduceInFp32}).fix(ctx.fixRemove(patterns));
}

void ruleParamGatherNeeds(RuleContext &ctx) {
  bool hasShards = ctx.wantsFsdp() || ctx.derived().distributedOptimizer ||
                   ctx.cfg().is(Opt::OptimizerOptimizer, OptimizerKind::DistMuon);
  if (ctx.on(Opt::DdpOverlapParamGather) && !hasShards)
    ctx.report({Opt::DdpOverlapParamGather, Opt::DdpUseDistributedOptimizer})
        .fix(ctx.fixSet(Opt::DdpUseDistributedOptimizer, Value::ofBool(true),
                        FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::DdpOverlapParamGather, FixItKind::Alternative));
}

void ruleParamGatherNeedsReduce(RuleContext &ctx) {
  if (ctx.on(Opt::DdpOverlapParamGather) && !ctx.on(Opt::DdpOverlapGradReduce))
    ctx.report({Opt::DdpOverlapParamGather, Opt::DdpOverlapGradReduce})
        .fix(ctx.fixSet(Opt::DdpOverlapGradReduce, Value::ofBool(true)));
}

void ruleStepOverlapNeeds(RuleContext &ctx) {
  Opt overlap = Opt::OptimizerOverlapParamGatherWithOptimizerStep;
  const Derived &d = ctx.derived();
  if (ctx.on(overlap) && (d.virtualStages < 2 || !d.distributedOptimizer))
    ctx.report({overlap, Opt::ModelVirtualPipelineModelParallelSize}, {d.virtualStages})
        .fix(ctx.fixRemove(overlap));
}

void ruleNoShardUnderFsdp(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.derived().strategy == ShardingStrategy::NoShard)
    ctx.report({ctx.fsdpFlag(), kStrategy})
        .fix(ctx.fixSet(kStrategy, Value::ofEnum(ShardingStrategy::OptimGradsParams),
                        FixItKind::Recommended));
}

void ruleStrategyIgnored(RuleContext &ctx) {
  if (ctx.wantsFsdp() || !ctx.isWritten(kStrategy) || !ctx.has(kStrategy) ||
      ctx.cfg().is(kStrategy, ctx.derived().strategy))
    return;
  ctx.report({kStrategy, Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp},
             {arg(ctx, kStrategy), DiagArg(spelling(ctx.derived().strategy))});
}

void ruleOuterStrategyIgnored(RuleContext &ctx) {
  if (!ctx.wantsFsdp() && ctx.derived().outerStrategy == OuterStrategy::Optim)
    ctx.report(
        {Opt::DdpOuterDpShardingStrategy, Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp});
}

void ruleFsdpWithTensorOrContext(RuleContext &ctx) {
  std::optional<Opt> degree = splitDegree(ctx);
  if (!ctx.wantsFsdp() || !degree || !isBeforeBlackwell(ctx))
    return;
  ctx.report({*degree, ctx.fsdpFlag()},
             {pathOf(*degree), arg(ctx, *degree), arg(ctx, Opt::ClusterGpu)});
}

void ruleTensorNeedsOneConnection(RuleContext &ctx) {
  std::optional<Opt> degree = splitDegree(ctx);
  const std::string *value = ctx.variable("CUDA_DEVICE_MAX_CONNECTIONS");
  // If the variable is unset, the job's environment determines it, so the recipe is not at fault.
  if (ctx.wantsFsdp() || ctx.on(Opt::DistUseTorchFsdp2) || !degree || !isBeforeBlackwell(ctx) ||
      !value || *value == "1")
    return;
  ctx.report({*degree, Opt::EnvCudaDeviceMaxConnections},
             {pathOf(*degree), arg(ctx, *degree), arg(ctx, Opt::ClusterGpu), DiagArg(*value)});
}

} // namespace shardc::config
