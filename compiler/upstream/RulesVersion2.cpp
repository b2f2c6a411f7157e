// Rules about the limits of upstream's version 2 of Megatron FSDP.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kVersion = Opt::DdpMegatronFsdpVersion;

/// Reports the rule for each option that is on or has a value, if version 2 is selected. The fix-it
/// removes the option.
void refuse(RuleContext &ctx, std::initializer_list<Opt> opts,
            FixItKind kind = FixItKind::Alternative) {
  for (Opt opt : opts)
    if (isVersion2(ctx) && (info(opt).type.type == ValueType::Bool ? ctx.on(opt) : ctx.has(opt)))
      ctx.report({kVersion, opt}, {DiagArg(info(opt).name)}).fix(ctx.fixRemove(opt, kind));
}

} // namespace

void ruleV2Bf16(RuleContext &ctx) {
  if (isVersion2(ctx) && (!ctx.on(Opt::ModelBf16) || !ctx.on(Opt::OptimizerBf16)))
    ctx.report({kVersion, Opt::ModelBf16, Opt::MixedPrecisionPreset});
}

void ruleV2Parallel(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelTensorModelParallelSize, Opt::ModelPipelineModelParallelSize,
                  Opt::ModelContextParallelSize, Opt::ModelExpertModelParallelSize})
    if (isVersion2(ctx) && ctx.num(opt) > 1)
      ctx.report({kVersion, opt}, {pathOf(opt), ctx.num(opt)});
}

void ruleV2Moe(RuleContext &ctx) {
  if (isVersion2(ctx) && ctx.has(Opt::ModelNumMoeExperts))
    ctx.report({kVersion, Opt::ModelNumMoeExperts, Opt::ModelFamily});
}

void ruleV2RandomInit(RuleContext &ctx) { refuse(ctx, {Opt::RngDataParallelRandomInit}); }

void ruleV2Hsdp(RuleContext &ctx) {
  if (isVersion2(ctx) && ctx.derived().dataParallelOuter > 1)
    ctx.report({kVersion, Opt::DdpNumDistributedOptimizerInstances});
}

void ruleV2Outer(RuleContext &ctx) {
  if (isVersion2(ctx) && ctx.derived().outerStrategy != OuterStrategy::NoShard)
    ctx.report({kVersion, Opt::DdpOuterDpShardingStrategy});
}

void ruleV2Checkpoint(RuleContext &ctx) {
  refuse(ctx, {Opt::CheckpointSave, Opt::CheckpointLoad, Opt::CheckpointPretrainedCheckpoint});
}

void ruleV2LossScale(RuleContext &ctx) {
  if (isVersion2(ctx) && (ctx.has(Opt::OptimizerLossScale) || ctx.on(Opt::ModelFp16)))
    ctx.report({kVersion, Opt::OptimizerLossScale, Opt::ModelFp16});
}

void ruleV2Clip(RuleContext &ctx) {
  Opt clip = Opt::OptimizerClipGrad;
  if (isVersion2(ctx) && ctx.cfg().getFloatOr(clip, 0) > 0)
    ctx.report({kVersion, clip}, {arg(ctx, clip)}).fix(ctx.fixSet(clip, Value::ofFloat(0)));
}

void ruleV2PrecisionAware(RuleContext &ctx) {
  refuse(ctx, {Opt::OptimizerUsePrecisionAwareOptimizer});
}

void ruleV2OptimizerOffload(RuleContext &ctx) { refuse(ctx, {Opt::OptimizerOptimizerCpuOffload}); }

void ruleV2LayerWise(RuleContext &ctx) {
  refuse(ctx, {Opt::OptimizerUseLayerWiseDistributedOptimizer});
}

void ruleV2OptimizerGraph(RuleContext &ctx) { refuse(ctx, {Opt::OptimizerOptimizerCudaGraph}); }

void ruleV2PerToken(RuleContext &ctx) { refuse(ctx, {Opt::ModelCalculatePerTokenLoss}); }

void ruleV2Fp8(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelFp8, Opt::ModelFp4})
    if (isVersion2(ctx) && ctx.has(opt))
      ctx.report({kVersion, opt, Opt::MixedPrecisionPreset});
}

void ruleV2Graphs(RuleContext &ctx) {
  Opt impl = Opt::ModelCudaGraphImpl;
  if (isVersion2(ctx) && !ctx.cfg().is(impl, CudaGraphImpl::NoGraph))
    ctx.report({kVersion, impl}).fix(ctx.fixRemove(impl));
}

void ruleV2Strategy(RuleContext &ctx) {
  Opt strategy = Opt::DdpDataParallelShardingStrategy;
  if (isVersion2(ctx) && ctx.derived().strategy != ShardingStrategy::OptimGradsParams)
    ctx.report({kVersion, strategy}, {arg(ctx, strategy)})
        .fix(ctx.fixSet(strategy, Value::ofEnum(ShardingStrategy::OptimGradsParams)));
}

void ruleV2Buffers(RuleContext &ctx) {
  refuse(ctx,
         {Opt::DdpFsdpDbUsePersistBufOnAllocFail, Opt::DdpFsdpManualRegistration,
          Opt::DdpDelayWgradCompute, Opt::DdpMegatronFsdpUseDecoupledGrad,
          Opt::DdpMegatronFsdpEnableFineGrainedParamGather, Opt::DdpMegatronFsdpMaxPoolDoubleBuffer,
          Opt::DdpSuggestedCommunicationUnitSize, Opt::DdpNumBuckets},
         FixItKind::Applied);
}

void ruleV2Registration(RuleContext &ctx) {
  Opt local = Opt::DdpDisableSymmetricRegistration;
  if (isVersion2(ctx) && ctx.on(Opt::DdpNcclUb) && ctx.on(local))
    ctx.report({kVersion, Opt::DdpNcclUb, local}).fix(ctx.fixRemove(local));
}

} // namespace shardc::config
