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
  ctx.report({cause, Opt::EnvCudaDeviceMaxConnections}).remove(Opt::EnvCudaDeviceMaxConnections);
}

/// A fix-it that switches off every flag of Megatron FSDP that was written.
std::optional<FixIt> fixFsdpOff(const RuleContext &ctx) {
  std::optional<FixIt> all;
  for (Opt flag : {Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp, Opt::DdpUseCustomFsdp}) {
    if (!ctx.on(flag) || !ctx.isWritten(flag))
      continue;
    std::optional<FixIt> fix = ctx.fixSet(flag, false, FixItKind::Alternative);
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

RULE_CODE(FsdpFlagsContradict) {
  Opt dist = DistUseMegatronFsdp, ddp = DdpUseMegatronFsdp;
  Opt custom = DdpUseCustomFsdp; // the old name of `ddp`
  bool isOther = on(dist) != on(ddp), isOld = on(custom) && !on(ddp);
  if (!isOther && !isOld)
    return;
  auto [isOn, isOff] = !isOther   ? std::pair(custom, ddp)
                       : on(dist) ? std::pair(dist, ddp)
                                  : std::pair(ddp, dist);
  report({isOn, isOff}, {pathOf(isOn), pathOf(isOff)})
      .set(isOff, true, Alternative)
      .set(isOn, false, Alternative);
}

RULE_IF(FsdpAndTorchFsdp2, wantsFsdp() && on(DistUseTorchFsdp2),
        report({fsdpFlag(), DistUseTorchFsdp2})
            .set(DistUseTorchFsdp2, false, Alternative)
            .fix(fixFsdpOff(ctx)));
RULE_IF(FsdpRankOrder, wantsFsdp() && on(DistUseTpPpDpMapping),
        report({fsdpFlag(), DistUseTpPpDpMapping})
            .remove(DistUseTpPpDpMapping)
            .note(diag::StandardRankOrder, cfg().range(DistUseTpPpDpMapping)));

RULE_CODE(FsdpCheckpointFormat) {
  Opt format = CheckpointCkptFormat;
  // Version 2 supports no checkpoints at all; a rule of its own reports that.
  if (!wantsFsdp() || isVersion2(ctx) || cfg().is(format, CkptFormat::FsdpDtensor))
    return;
  report({fsdpFlag(), format}).set(format, CkptFormat::FsdpDtensor);
}

RULE_IF(CheckpointFormatNeedsFsdp,
        !wantsFsdp() && cfg().is(CheckpointCkptFormat, CkptFormat::FsdpDtensor),
        report({CheckpointCkptFormat})
            .set(CheckpointCkptFormat, CkptFormat::TorchDist, Alternative)
            .set(DistUseMegatronFsdp, true, Alternative));
RULE_IF(FsdpMaxConnections, wantsFsdp() && hasOneConnection(ctx),
        reportOneConnection(ctx, fsdpFlag()));
RULE_IF(TorchFsdp2MaxConnections, on(DistUseTorchFsdp2) && !wantsFsdp() && hasOneConnection(ctx),
        reportOneConnection(ctx, DistUseTorchFsdp2));
RULE_IF(FsdpVersion, num(DdpMegatronFsdpVersion) != 1 && num(DdpMegatronFsdpVersion) != 2,
        report({DdpMegatronFsdpVersion}, {num(DdpMegatronFsdpVersion)}));

RULE_CODE(FsdpOptimizer) {
  Opt kind = OptimizerOptimizer;
  constexpr std::array kExecuted = {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon,
                                    OptimizerKind::DistMuon};
  bool isExecuted = llvm::is_contained(kExecuted, cfg().getEnumOr(kind, OptimizerKind::Adam));
  if (wantsFsdp() && !isExecuted)
    report({fsdpFlag(), kind}, {text(kind)});
}

RULE_IF(FsdpHybridContextParallel, wantsFsdp() && on(ModelHybridContextParallel),
        report({fsdpFlag(), ModelHybridContextParallel}));
RULE_EACH(FsdpSingleGroupedExperts, (ModelMoeSingleGroupedWeight, ModelMoeSingleGroupedBias),
          wantsFsdp() && on(opt), report({fsdpFlag(), opt}).remove(opt));
RULE_IF(FsdpVirtualStages,
        wantsFsdp() && d.virtualStages > 1 &&
            !cfg().is(ModelPipelineSchedule, PipelineSchedule::Interleaved),
        report({fsdpFlag(), ModelVirtualPipelineModelParallelSize}, {d.virtualStages}));
RULE_IF(FsdpWeightHash,
        wantsFsdp() && has(TrainCheckWeightHashAcrossDpReplicasInterval) &&
            d.strategy == ShardingStrategy::OptimGradsParams,
        report({kStrategy, TrainCheckWeightHashAcrossDpReplicasInterval})
            .remove(TrainCheckWeightHashAcrossDpReplicasInterval));
RULE_IF(FsdpManualRegistration, wantsFsdp() && on(DdpFsdpManualRegistration) && !on(DdpNcclUb),
        report({DdpFsdpManualRegistration, DdpNcclUb})
            .set(DdpNcclUb, true, Alternative)
            .remove(DdpFsdpManualRegistration, Alternative));
RULE_IF(RegistrationNeedsFsdp, !wantsFsdp() && on(DdpFsdpManualRegistration),
        report({DdpFsdpManualRegistration}).remove(DdpFsdpManualRegistration));

RULE_CODE(RegisteredBuffersExpandableSegments) {
  const std::string *value = variable("PYTORCH_CUDA_ALLOC_CONF");
  if (!on(DdpNcclUb) || !value)
    return;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  llvm::StringRef(*value).split(parts, ',');
  if (llvm::is_contained(parts, "expandable_segments:True"))
    report({DdpNcclUb, EnvPytorchCudaAllocConf});
}

RULE_CODE(OuterShardingNeedsInner) {
  Opt outer = DdpOuterDpShardingStrategy;
  if (wantsFsdp() && d.outerStrategy == OuterStrategy::Optim &&
      d.strategy != ShardingStrategy::OptimGradsParams)
    report({outer, kStrategy}, {text(kStrategy)})
        .set(kStrategy, ShardingStrategy::OptimGradsParams, Alternative)
        .set(outer, OuterStrategy::NoShard, Alternative);
}

RULE_IF(OuterShardingNeedsInstances,
        wantsFsdp() && d.outerStrategy == OuterStrategy::Optim && d.dataParallelOuter < 2,
        report({DdpOuterDpShardingStrategy, DdpNumDistributedOptimizerInstances},
               {d.dataParallelOuter}));
RULE_IF(BucketsTwice, has(DdpNumBuckets) && has(DdpBucketSize),
        report({DdpNumBuckets, DdpBucketSize})
            .remove(DdpNumBuckets, Alternative)
            .remove(DdpBucketSize, Alternative));
RULE_IF(BucketsPositive, has(DdpNumBuckets) && num(DdpNumBuckets) <= 0,
        report({DdpNumBuckets}, {num(DdpNumBuckets)}));
RULE_IF(LocalAccumulationPatterns,
        has(DdpParamNamePatternsForFp32LocalAccumulation) &&
            !cfg().getList(DdpParamNamePatternsForFp32LocalAccumulation).empty() &&
            on(DdpGradReduceInFp32),
        report({DdpParamNamePatternsForFp32LocalAccumulation, DdpGradReduceInFp32})
            .remove(DdpParamNamePatternsForFp32LocalAccumulation));

RULE_CODE(ParamGatherOverlapNeedsSharding) {
  bool hasShards = wantsFsdp() || d.distributedOptimizer ||
                   cfg().is(OptimizerOptimizer, OptimizerKind::DistMuon);
  if (on(DdpOverlapParamGather) && !hasShards)
    report({DdpOverlapParamGather, DdpUseDistributedOptimizer})
        .set(DdpUseDistributedOptimizer, true, Alternative)
        .remove(DdpOverlapParamGather, Alternative);
}

RULE_IF(ParamGatherOverlapNeedsReduceOverlap,
        on(DdpOverlapParamGather) && !on(DdpOverlapGradReduce),
        report({DdpOverlapParamGather, DdpOverlapGradReduce}).set(DdpOverlapGradReduce, true));
RULE_IF(StepOverlapNeedsVirtualStages,
        on(OptimizerOverlapParamGatherWithOptimizerStep) &&
            (d.virtualStages < 2 || !d.distributedOptimizer),
        report({OptimizerOverlapParamGatherWithOptimizerStep,
                ModelVirtualPipelineModelParallelSize},
               {d.virtualStages})
            .remove(OptimizerOverlapParamGatherWithOptimizerStep));
RULE_IF(NoShardUnderFsdp, wantsFsdp() && d.strategy == ShardingStrategy::NoShard,
        report({fsdpFlag(), kStrategy})
            .set(kStrategy, ShardingStrategy::OptimGradsParams, Recommended));
RULE_IF(StrategyIgnored,
        !wantsFsdp() && isWritten(kStrategy) && has(kStrategy) && !cfg().is(kStrategy, d.strategy),
        report({kStrategy, DistUseMegatronFsdp, DdpUseMegatronFsdp},
               {text(kStrategy), DiagArg(spelling(d.strategy))}));
RULE_IF(OuterStrategyIgnored, !wantsFsdp() && d.outerStrategy == OuterStrategy::Optim,
        report({DdpOuterDpShardingStrategy, DistUseMegatronFsdp, DdpUseMegatronFsdp}));

RULE_CODE(FsdpWithTensorOrContextParallel) {
  std::optional<Opt> degree = splitDegree(ctx);
  if (!wantsFsdp() || !degree || !isBeforeBlackwell(ctx))
    return;
  report({*degree, fsdpFlag()}, {pathOf(*degree), text(*degree), text(ClusterGpu)});
}

RULE_CODE(TensorParallelMaxConnections) {
  std::optional<Opt> degree = splitDegree(ctx);
  const std::string *value = variable("CUDA_DEVICE_MAX_CONNECTIONS");
  // If the variable is unset, the job's environment determines it, so the recipe is not at fault.
  if (wantsFsdp() || on(DistUseTorchFsdp2) || !degree || !isBeforeBlackwell(ctx) || !value ||
      *value == "1")
    return;
  report({*degree, EnvCudaDeviceMaxConnections},
         {pathOf(*degree), text(*degree), text(ClusterGpu), DiagArg(*value)});
}

} // namespace shardc::config
