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
      ctx.report({kVersion, opt}, {DiagArg(info(opt).name)}).remove(opt, kind);
}

} // namespace

RULE_IF(FsdpV2Bf16, isVersion2(ctx) && (!on(ModelBf16) || !on(OptimizerBf16)),
        report({kVersion, ModelBf16, MixedPrecisionPreset}));
RULE_EACH(FsdpV2Parallel,
          (ModelTensorModelParallelSize, ModelPipelineModelParallelSize, ModelContextParallelSize,
           ModelExpertModelParallelSize),
          isVersion2(ctx) && num(opt) > 1, report({kVersion, opt}, {pathOf(opt), num(opt)}));
RULE_IF(FsdpV2Experts, isVersion2(ctx) && has(ModelNumMoeExperts),
        report({kVersion, ModelNumMoeExperts, ModelFamily}));
RULE_DO(FsdpV2RandomInit, refuse(ctx, {RngDataParallelRandomInit}));
RULE_IF(FsdpV2Hsdp, isVersion2(ctx) && d.dataParallelOuter > 1,
        report({kVersion, DdpNumDistributedOptimizerInstances}));
RULE_IF(FsdpV2Outer, isVersion2(ctx) && d.outerStrategy != OuterStrategy::NoShard,
        report({kVersion, DdpOuterDpShardingStrategy}));
RULE_DO(FsdpV2Checkpoint,
        refuse(ctx, {CheckpointSave, CheckpointLoad, CheckpointPretrainedCheckpoint}));
RULE_IF(FsdpV2LossScale, isVersion2(ctx) && (has(OptimizerLossScale) || on(ModelFp16)),
        report({kVersion, OptimizerLossScale, ModelFp16}));
RULE_IF(
    FsdpV2Clip, isVersion2(ctx) && cfg().getFloatOr(OptimizerClipGrad, 0) > 0,
    report({kVersion, OptimizerClipGrad}, {text(OptimizerClipGrad)}).set(OptimizerClipGrad, 0.0));
RULE_DO(FsdpV2PrecisionAware, refuse(ctx, {OptimizerUsePrecisionAwareOptimizer}));
RULE_DO(FsdpV2OptimizerOffload, refuse(ctx, {OptimizerOptimizerCpuOffload}));
RULE_DO(FsdpV2LayerWise, refuse(ctx, {OptimizerUseLayerWiseDistributedOptimizer}));
RULE_DO(FsdpV2OptimizerGraph, refuse(ctx, {OptimizerOptimizerCudaGraph}));
RULE_DO(FsdpV2PerTokenLoss, refuse(ctx, {ModelCalculatePerTokenLoss}));
RULE_EACH(FsdpV2Fp8, (ModelFp8, ModelFp4), isVersion2(ctx) && has(opt),
          report({kVersion, opt, MixedPrecisionPreset}));
RULE_IF(FsdpV2Graphs, isVersion2(ctx) && !cfg().is(ModelCudaGraphImpl, CudaGraphImpl::NoGraph),
        report({kVersion, ModelCudaGraphImpl}).remove(ModelCudaGraphImpl));
RULE_IF(FsdpV2Strategy, isVersion2(ctx) && d.strategy != ShardingStrategy::OptimGradsParams,
        report({kVersion, DdpDataParallelShardingStrategy}, {text(DdpDataParallelShardingStrategy)})
            .set(DdpDataParallelShardingStrategy, ShardingStrategy::OptimGradsParams));
RULE_DO(FsdpV2Buffers,
        refuse(ctx,
               {DdpFsdpDbUsePersistBufOnAllocFail, DdpFsdpManualRegistration, DdpDelayWgradCompute,
                DdpMegatronFsdpUseDecoupledGrad, DdpMegatronFsdpEnableFineGrainedParamGather,
                DdpMegatronFsdpMaxPoolDoubleBuffer, DdpSuggestedCommunicationUnitSize,
                DdpNumBuckets},
               Applied));
RULE_IF(FsdpV2Registration, isVersion2(ctx) && on(DdpNcclUb) && on(DdpDisableSymmetricRegistration),
        report({kVersion, DdpNcclUb, DdpDisableSymmetricRegistration})
            .remove(DdpDisableSymmetricRegistration));

} // namespace shardc::config
