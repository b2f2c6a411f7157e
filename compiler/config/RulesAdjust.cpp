// The automatic adjustments. Each one changes one value in only one direction, depending on the
// current configuration, so that repeated adjustments terminate.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

/// Switches an option off under Megatron FSDP.
void offUnderFsdp(RuleContext &ctx, Opt opt) {
  if (ctx.wantsFsdp() && ctx.on(opt))
    ctx.adjust(opt, Value::ofBool(false), ctx.fsdpFlag());
}

/// Switches on the option of the two that is off, since upstream keeps them equal.
void keepInStep(RuleContext &ctx, Opt a, Opt b) {
  if (isVersion2(ctx))
    return; // version 2 switches both off
  if (ctx.on(a) && !ctx.on(b))
    ctx.adjust(b, Value::ofBool(true), a);
  else if (ctx.on(b) && !ctx.on(a))
    ctx.adjust(a, Value::ofBool(true), b);
}

} // namespace

void ruleFsdpCustomFlag(RuleContext &ctx) {
  if (ctx.on(Opt::DdpUseCustomFsdp) && !ctx.isWritten(Opt::DdpUseMegatronFsdp))
    ctx.adjust(Opt::DdpUseMegatronFsdp, Value::ofBool(true), Opt::DdpUseCustomFsdp);
}

void ruleFsdpFlagCompleted(RuleContext &ctx) {
  // A flag that the user set to false contradicts the other one. That is an error, so it is not
  // adjusted.
  for (auto [from, to] : {std::pair(Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp),
                          std::pair(Opt::DdpUseMegatronFsdp, Opt::DistUseMegatronFsdp)})
    if (ctx.on(from) && !ctx.on(to) && !ctx.isWritten(to))
      ctx.adjust(to, Value::ofBool(true), from);
}

void ruleFsdpAverageInCollective(RuleContext &ctx) {
  offUnderFsdp(ctx, Opt::DdpAverageInCollective);
}

void ruleFsdpGradientAccumulationFusion(RuleContext &ctx) {
  offUnderFsdp(ctx, Opt::ModelGradientAccumulationFusion);
}

void ruleFsdpReuseGradBuffer(RuleContext &ctx) {
  offUnderFsdp(ctx, Opt::DdpReuseGradBufForMxfp8ParamAg);
  offUnderFsdp(ctx, Opt::OptimizerReuseGradBufForMxfp8ParamAg);
}

void ruleFsdpDistributedOptimizer(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || isVersion2(ctx))
    return;
  for (Opt opt : {Opt::DdpUseDistributedOptimizer, Opt::OptimizerUseDistributedOptimizer})
    ctx.adjust(opt, Value::ofBool(true), ctx.fsdpFlag());
}

void ruleDistributedOptimizerTwin(RuleContext &ctx) {
  keepInStep(ctx, Opt::DdpUseDistributedOptimizer, Opt::OptimizerUseDistributedOptimizer);
}

void ruleOverlapParamGatherTwin(RuleContext &ctx) {
  keepInStep(ctx, Opt::DdpOverlapParamGather, Opt::OptimizerOverlapParamGather);
}

void ruleDelayWgradTwin(RuleContext &ctx) {
  keepInStep(ctx, Opt::ModelDelayWgradCompute, Opt::DdpDelayWgradCompute);
}

void ruleTpOverlapDropout(RuleContext &ctx) {
  bool isServed = ctx.derived().tensorParallel >= 2 && ctx.on(Opt::ModelSequenceParallel);
  if (isServed && ctx.on(Opt::ModelTpCommOverlap) &&
      ctx.cfg().getFloatOr(Opt::ModelHiddenDropout, 0) > 0)
    ctx.adjust(Opt::ModelTpCommOverlap, Value::ofBool(false), Opt::ModelHiddenDropout);
}

void ruleTpOverlapSinkhorn(RuleContext &ctx) {
  if (ctx.on(Opt::ModelTpCommOverlap) && asksForSinkhorn(ctx))
    ctx.adjust(Opt::ModelTpCommOverlap, Value::ofBool(false), Opt::ModelMoeRouterLoadBalancingType);
}

void ruleTpOverlapDgrad(RuleContext &ctx) {
  if (ctx.on(Opt::ModelTpCommOverlap) && ctx.isWritten(Opt::ModelTpCommOverlapRsDgrad))
    ctx.adjust(Opt::ModelTpCommOverlapRsDgrad, Value::ofBool(true), Opt::ModelTpCommOverlap);
}

void ruleFsdpDecoupledGrad(RuleContext &ctx) {
  if (ctx.wantsFsdp() && !isVersion2(ctx) && ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer))
    ctx.adjust(Opt::DdpMegatronFsdpUseDecoupledGrad, Value::ofBool(true),
               Opt::OptimizerUsePrecisionAwareOptimizer);
}

void ruleFsdpForcedOverlap(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || isVersion2(ctx))
    return;
  ShardingStrategy strategy = ctx.derived().strategy;
  Opt cause = Opt::DdpDataParallelShardingStrategy;
  if (strategy >= ShardingStrategy::OptimGrads)
    ctx.adjust(Opt::DdpOverlapGradReduce, Value::ofBool(true), cause);
  if (strategy == ShardingStrategy::OptimGradsParams)
    ctx.adjust(Opt::DdpOverlapParamGather, Value::ofBool(true), cause);
}

void ruleFsdpV2Settings(RuleContext &ctx) {
  if (!isVersion2(ctx))
    return;
  for (Opt opt :
       {Opt::DdpUseDistributedOptimizer, Opt::OptimizerUseDistributedOptimizer,
        Opt::DdpOverlapGradReduce, Opt::DdpOverlapParamGather, Opt::OptimizerOverlapParamGather,
        Opt::OptimizerOverlapParamGatherWithOptimizerStep, Opt::DdpFsdpAllGatherInStartParamSync})
    ctx.adjust(opt, Value::ofBool(false), Opt::DdpMegatronFsdpVersion);
}

void ruleNcclUbDoubleBuffer(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || !ctx.on(Opt::DdpNcclUb) || isVersion2(ctx))
    return;
  ctx.adjust(Opt::DdpFsdpDoubleBuffer, Value::ofBool(true), Opt::DdpNcclUb);
  ctx.adjust(Opt::DdpFsdpManualRegistration, Value::ofBool(true), Opt::DdpNcclUb);
}

void ruleMaxPoolDoubleBuffer(RuleContext &ctx) {
  if (ctx.on(Opt::DdpMegatronFsdpMaxPoolDoubleBuffer))
    ctx.adjust(Opt::DdpFsdpDoubleBuffer, Value::ofBool(true),
               Opt::DdpMegatronFsdpMaxPoolDoubleBuffer);
}

void ruleSequenceParallelAlone(RuleContext &ctx) {
  if (ctx.on(Opt::ModelSequenceParallel) && ctx.derived().tensorParallel == 1)
    ctx.adjust(Opt::ModelSequenceParallel, Value::ofBool(false), Opt::ModelTensorModelParallelSize);
}

void ruleFsdpCudaGraphMode(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || isVersion2(ctx) ||
      !ctx.cfg().is(Opt::ModelCudaGraphImpl, CudaGraphImpl::FullIteration))
    return;
  ctx.adjust(Opt::DdpMegatronFsdpCudaGraphMode, Value::ofBool(true), Opt::ModelCudaGraphImpl);
  ctx.adjust(Opt::DdpFsdpAllGatherInStartParamSync, Value::ofBool(false), Opt::ModelCudaGraphImpl);
}

void ruleMissingLoad(RuleContext &ctx) {
  Opt exit = Opt::CheckpointExitOnMissingCheckpoint;
  auto folder = [&](Opt opt) { return llvm::StringRef(ctx.text(opt)).rtrim('/').str(); };
  bool continues =
      ctx.has(Opt::CheckpointSave) && folder(Opt::CheckpointLoad) == folder(Opt::CheckpointSave);
  if (ctx.has(Opt::CheckpointLoad) && !continues && !ctx.isWritten(exit))
    ctx.adjust(exit, Value::ofBool(true), Opt::CheckpointLoad);
}

void ruleWarmupCapped(RuleContext &ctx) {
  int64_t decay = ctx.num(Opt::SchedulerLrDecayIters);
  bool isOfIters = !ctx.has(Opt::SchedulerLrWarmupFraction);
  if (isOfIters && decay > 0 && ctx.num(Opt::SchedulerLrWarmupIters) >= decay)
    ctx.adjust(Opt::SchedulerLrWarmupIters, Value::ofInt(decay - 1), Opt::SchedulerLrDecayIters);
}

void ruleNoPipelineOverlap(RuleContext &ctx) {
  if (ctx.derived().pipelineParallel == 1 || ctx.derived().virtualStages > 1)
    return;
  for (Opt opt : {Opt::ModelOverlapP2pComm, Opt::DdpAlignParamGather})
    if (ctx.on(opt))
      ctx.adjust(opt, Value::ofBool(false), Opt::ModelPipelineModelParallelSize);
}

void ruleHighPriorityGroups(RuleContext &ctx) {
  bool isBlackwell = ctx.derived().gpu && !predict::device(*ctx.derived().gpu).isHost() &&
                     !predict::device(*ctx.derived().gpu).isBeforeBlackwell();
  bool isWanted = (ctx.wantsFsdp() && isBlackwell) || ctx.on(Opt::DistUseTorchFsdp2);
  Opt groups = Opt::DistHighPriorityStreamGroups;
  if (!isWanted || !ctx.has(groups))
    return;
  Value::List list = ctx.cfg().getList(groups);
  auto add = [&](const char *name) {
    if (!llvm::is_contained(list, Value::ofString(name)))
      list.push_back(Value::ofString(name));
  };
  add("dp_cp");
  if (ctx.derived().expertParallel > 1)
    add("ep_dp");
  ctx.adjust(groups, Value::ofList(std::move(list)),
             ctx.wantsFsdp() ? ctx.fsdpFlag() : Opt::DistUseTorchFsdp2);
}

void ruleFineGrainedGather(RuleContext &ctx) {
  if (!ctx.wantsFsdp() || isVersion2(ctx))
    return;
  bool isMxfp8 =
      ctx.on(Opt::DdpFp8ParamGather) && ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Mxfp8);
  if (isMxfp8)
    ctx.adjust(Opt::DdpMegatronFsdpEnableFineGrainedParamGather, Value::ofBool(true),
               Opt::DdpFp8ParamGather);
  else if (ctx.on(Opt::ModelOverlapMoeExpertParallelComm))
    ctx.adjust(Opt::DdpMegatronFsdpEnableFineGrainedParamGather, Value::ofBool(true),
               Opt::ModelOverlapMoeExpertParallelComm);
}

void ruleLazyInitOnCpu(RuleContext &ctx) {
  if (ctx.on(Opt::DistLazyMpuInit))
    ctx.adjust(Opt::ModelUseCpuInitialization, Value::ofBool(true), Opt::DistLazyMpuInit);
}

void ruleFsdp2Fp8Gather(RuleContext &ctx) {
  if (ctx.on(Opt::DistUseTorchFsdp2) && !ctx.wantsFsdp() && ctx.on(Opt::DdpFp8ParamGather))
    ctx.adjust(Opt::DdpFp8ParamGather, Value::ofBool(false), Opt::DistUseTorchFsdp2);
}

void ruleLossScaleNanCheck(RuleContext &ctx) {
  if (!ctx.on(Opt::ModelFp16) || ctx.has(Opt::OptimizerLossScale))
    return;
  for (Opt opt : {Opt::DdpCheckForNanInGrad, Opt::RerunStateMachineCheckForNanInLoss})
    if (ctx.on(opt))
      ctx.adjust(opt, Value::ofBool(false), Opt::ModelFp16);
}

} // namespace shardc::config
