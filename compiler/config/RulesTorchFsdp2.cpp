// Rules on PyTorch's FSDP2 and its checkpoint format. The rule on its environment variables is next
// to that of Megatron FSDP.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kFlag = Opt::DistUseTorchFsdp2;

/// Whether only FSDP2 is requested. Another rule reports FSDP2 together with Megatron FSDP.
bool isFsdp2(const RuleContext &ctx) { return ctx.on(kFlag) && !ctx.wantsFsdp(); }

} // namespace

RULE_IF(TorchFsdp2Pipeline, isFsdp2(ctx) && d.pipelineParallel > 1,
        report({kFlag, ModelPipelineModelParallelSize}));
RULE_IF(TorchFsdp2Experts, isFsdp2(ctx) && d.expertParallel > 1,
        report({kFlag, ModelExpertModelParallelSize}));

RULE_CODE(TorchFsdp2DistributedOptimizer) {
  if (!isFsdp2(ctx) || !d.distributedOptimizer)
    return;
  Opt written = isWritten(OptimizerUseDistributedOptimizer) ? OptimizerUseDistributedOptimizer
                                                            : DdpUseDistributedOptimizer;
  report({kFlag, written}).remove(written);
}

RULE_IF(
    TorchFsdp2GradientFusion, isFsdp2(ctx) && on(ModelGradientAccumulationFusion),
    report({kFlag, ModelGradientAccumulationFusion}).set(ModelGradientAccumulationFusion, false));

RULE_CODE(TorchFsdp2CheckpointFormat) {
  bool isServed =
      cfg().is(kFormat, CkptFormat::TorchDist) || cfg().is(kFormat, CkptFormat::TorchDcp);
  // Another rule refuses fsdp_dtensor without Megatron FSDP.
  bool isMegatrons = cfg().is(kFormat, CkptFormat::FsdpDtensor);
  if (isFsdp2(ctx) && has(kFormat) && !isServed && !isMegatrons)
    report({kFlag, kFormat}, {text(kFormat)}).set(kFormat, CkptFormat::TorchDcp);
}

RULE_IF(TorchFsdp2Tied, isFsdp2(ctx) && on(ModelShareEmbeddingsAndOutputWeights),
        report({kFlag, ModelShareEmbeddingsAndOutputWeights})
            .set(ModelShareEmbeddingsAndOutputWeights, false, Alternative));
RULE_IF(TorchFsdp2Fp16, isFsdp2(ctx) && on(ModelFp16),
        report({kFlag, ModelFp16, MixedPrecisionPreset}));
RULE_IF(TorchFsdp2Optimizer,
        isFsdp2(ctx) && !(cfg().is(OptimizerOptimizer, OptimizerKind::Adam) ||
                          cfg().is(OptimizerOptimizer, OptimizerKind::Sgd)),
        report({kFlag, OptimizerOptimizer}, {text(OptimizerOptimizer)}));
RULE_IF(TorchFsdp2Instances, isFsdp2(ctx) && d.dataParallelOuter > 1,
        report({kFlag, DdpNumDistributedOptimizerInstances}, {d.dataParallelOuter})
            .set(DdpNumDistributedOptimizerInstances, 1, Alternative));
RULE_IF(TorchFsdp2Gradients, isFsdp2(ctx) && d.params != DType::F32,
        report({kFlag, ModelParamsDtype}, {DiagArg(std::string(dtypeName(d.wire))),
                                           DiagArg(std::string(dtypeName(d.params)))}));
RULE_IF(TorchFsdp2Experimental, isFsdp2(ctx), report({kFlag}));
RULE_IF(TorchDcpTensorParallel,
        cfg().is(kFormat, CkptFormat::TorchDcp) && isFsdp2(ctx) && d.tensorParallel > 1,
        report({kFormat, ModelTensorModelParallelSize, kFlag}, {d.tensorParallel})
            .set(kFormat, CkptFormat::TorchDist, Alternative));
RULE_IF(TorchDcpNeedsFsdp, cfg().is(kFormat, CkptFormat::TorchDcp) && !on(kFlag) && !wantsFsdp(),
        report({kFormat}).set(kFormat, CkptFormat::TorchDist, Alternative));

} // namespace shardc::config
