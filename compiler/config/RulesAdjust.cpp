// The automatic adjustments. Each one changes one value in only one direction, depending on the
// current configuration, so that repeated adjustments terminate.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

/// Switches an option off under Megatron FSDP.
void offUnderFsdp(RuleContext &ctx, Opt opt) {
  if (ctx.wantsFsdp() && ctx.on(opt))
    ctx.adjust(opt, false, ctx.fsdpFlag());
}

/// Switches on the option of the two that is off, since upstream keeps them equal.
void keepInStep(RuleContext &ctx, Opt a, Opt b) {
  if (isVersion2(ctx))
    return; // version 2 switches both off
  if (ctx.on(a) && !ctx.on(b))
    ctx.adjust(b, true, a);
  else if (ctx.on(b) && !ctx.on(a))
    ctx.adjust(a, true, b);
}

} // namespace

RULE_IF(FsdpOlderFlag, on(DdpUseCustomFsdp) && !isWritten(DdpUseMegatronFsdp),
        adjust(DdpUseMegatronFsdp, true, DdpUseCustomFsdp));

RULE_CODE(FsdpFlagCompleted) {
  // A flag that the user set to false contradicts the other one. That is an error, so it is not
  // adjusted.
  for (auto [from, to] : {std::pair(DistUseMegatronFsdp, DdpUseMegatronFsdp),
                          std::pair(DdpUseMegatronFsdp, DistUseMegatronFsdp)})
    if (on(from) && !on(to) && !isWritten(to))
      adjust(to, true, from);
}

RULE_DO(FsdpAverageInCollective, offUnderFsdp(ctx, DdpAverageInCollective));
RULE_DO(FsdpGradientAccumulationFusion, offUnderFsdp(ctx, ModelGradientAccumulationFusion));

RULE_CODE(FsdpReuseGradBuffer) {
  offUnderFsdp(ctx, DdpReuseGradBufForMxfp8ParamAg);
  offUnderFsdp(ctx, OptimizerReuseGradBufForMxfp8ParamAg);
}

RULE_CODE(FsdpDistributedOptimizer) {
  if (!wantsFsdp() || isVersion2(ctx))
    return;
  for (Opt opt : {DdpUseDistributedOptimizer, OptimizerUseDistributedOptimizer})
    adjust(opt, true, fsdpFlag());
}

RULE_DO(DistributedOptimizerInStep,
        keepInStep(ctx, DdpUseDistributedOptimizer, OptimizerUseDistributedOptimizer));
RULE_DO(ParamGatherOverlapInStep,
        keepInStep(ctx, DdpOverlapParamGather, OptimizerOverlapParamGather));
RULE_DO(DelayedWgradInStep, keepInStep(ctx, ModelDelayWgradCompute, DdpDelayWgradCompute));
RULE_IF(TensorOverlapDropout,
        d.tensorParallel >= 2 && on(ModelSequenceParallel) && on(ModelTpCommOverlap) &&
            cfg().getFloatOr(ModelHiddenDropout, 0) > 0,
        adjust(ModelTpCommOverlap, false, ModelHiddenDropout));
RULE_IF(TensorOverlapSinkhorn, on(ModelTpCommOverlap) && asksForSinkhorn(ctx),
        adjust(ModelTpCommOverlap, false, ModelMoeRouterLoadBalancingType));
RULE_IF(TensorOverlapGradients, on(ModelTpCommOverlap) && isWritten(ModelTpCommOverlapRsDgrad),
        adjust(ModelTpCommOverlapRsDgrad, true, ModelTpCommOverlap));
RULE_IF(FsdpDecoupledGrad,
        wantsFsdp() && !isVersion2(ctx) && on(OptimizerUsePrecisionAwareOptimizer),
        adjust(DdpMegatronFsdpUseDecoupledGrad, true, OptimizerUsePrecisionAwareOptimizer));

RULE_CODE(FsdpForcedOverlap) {
  if (!wantsFsdp() || isVersion2(ctx))
    return;
  ShardingStrategy strategy = d.strategy;
  Opt cause = DdpDataParallelShardingStrategy;
  if (strategy >= ShardingStrategy::OptimGrads)
    adjust(DdpOverlapGradReduce, true, cause);
  if (strategy == ShardingStrategy::OptimGradsParams)
    adjust(DdpOverlapParamGather, true, cause);
}

RULE_CODE(FsdpV2Settings) {
  if (!isVersion2(ctx))
    return;
  for (Opt opt : {DdpUseDistributedOptimizer, OptimizerUseDistributedOptimizer,
                  DdpOverlapGradReduce, DdpOverlapParamGather, OptimizerOverlapParamGather,
                  OptimizerOverlapParamGatherWithOptimizerStep, DdpFsdpAllGatherInStartParamSync})
    adjust(opt, false, DdpMegatronFsdpVersion);
}

RULE_CODE(RegisteredBuffers) {
  if (!wantsFsdp() || !on(DdpNcclUb) || isVersion2(ctx))
    return;
  adjust(DdpFsdpDoubleBuffer, true, DdpNcclUb);
  adjust(DdpFsdpManualRegistration, true, DdpNcclUb);
}

RULE_IF(MaxPoolDoubleBuffer, on(DdpMegatronFsdpMaxPoolDoubleBuffer),
        adjust(DdpFsdpDoubleBuffer, true, DdpMegatronFsdpMaxPoolDoubleBuffer));
RULE_IF(SequenceParallelAlone, on(ModelSequenceParallel) && d.tensorParallel == 1,
        adjust(ModelSequenceParallel, false, ModelTensorModelParallelSize));

RULE_CODE(FsdpCudaGraphMode) {
  if (!wantsFsdp() || isVersion2(ctx) ||
      !cfg().is(ModelCudaGraphImpl, CudaGraphImpl::FullIteration))
    return;
  adjust(DdpMegatronFsdpCudaGraphMode, true, ModelCudaGraphImpl);
  adjust(DdpFsdpAllGatherInStartParamSync, false, ModelCudaGraphImpl);
}

RULE_CODE(MissingCheckpointIsAnError) {
  Opt exit = CheckpointExitOnMissingCheckpoint;
  auto folder = [&](Opt opt) { return llvm::StringRef(text(opt)).rtrim('/').str(); };
  bool continues = has(CheckpointSave) && folder(CheckpointLoad) == folder(CheckpointSave);
  if (has(CheckpointLoad) && !continues && !isWritten(exit))
    adjust(exit, true, CheckpointLoad);
}

RULE_IF(WarmupCapped,
        !has(SchedulerLrWarmupFraction) && num(SchedulerLrDecayIters) > 0 &&
            num(SchedulerLrWarmupIters) >= num(SchedulerLrDecayIters),
        adjust(SchedulerLrWarmupIters, num(SchedulerLrDecayIters) - 1, SchedulerLrDecayIters));

RULE_CODE(NoPipelineOverlap) {
  if (d.pipelineParallel == 1 || d.virtualStages > 1)
    return;
  for (Opt opt : {ModelOverlapP2pComm, DdpAlignParamGather})
    if (on(opt))
      adjust(opt, false, ModelPipelineModelParallelSize);
}

RULE_CODE(HighPriorityGroups) {
  bool isBlackwell =
      d.gpu && !predict::device(*d.gpu).isHost() && !predict::device(*d.gpu).isBeforeBlackwell();
  bool isWanted = (wantsFsdp() && isBlackwell) || on(DistUseTorchFsdp2);
  Opt groups = DistHighPriorityStreamGroups;
  if (!isWanted || !has(groups))
    return;
  Value::List list = cfg().getList(groups);
  auto add = [&](const char *name) {
    if (!llvm::is_contained(list, Value::ofString(name)))
      list.push_back(Value::ofString(name));
  };
  add("dp_cp");
  if (d.expertParallel > 1)
    add("ep_dp");
  adjust(groups, Value::ofList(std::move(list)), wantsFsdp() ? fsdpFlag() : DistUseTorchFsdp2);
}

RULE_CODE(FineGrainedGather) {
  if (!wantsFsdp() || isVersion2(ctx))
    return;
  bool isMxfp8 = on(DdpFp8ParamGather) && cfg().is(ModelFp8Recipe, Fp8Recipe::Mxfp8);
  if (isMxfp8)
    adjust(DdpMegatronFsdpEnableFineGrainedParamGather, true, DdpFp8ParamGather);
  else if (on(ModelOverlapMoeExpertParallelComm))
    adjust(DdpMegatronFsdpEnableFineGrainedParamGather, true, ModelOverlapMoeExpertParallelComm);
}

RULE_IF(LazyInitializationOnCpu, on(DistLazyMpuInit),
        adjust(ModelUseCpuInitialization, true, DistLazyMpuInit));
RULE_IF(TorchFsdp2Fp8Gather, on(DistUseTorchFsdp2) && !wantsFsdp() && on(DdpFp8ParamGather),
        adjust(DdpFp8ParamGather, false, DistUseTorchFsdp2));

RULE_CODE(LossScaleNanCheck) {
  if (!on(ModelFp16) || has(OptimizerLossScale))
    return;
  for (Opt opt : {DdpCheckForNanInGrad, RerunStateMachineCheckForNanInLoss})
    if (on(opt))
      adjust(opt, false, ModelFp16);
}

} // namespace shardc::config
