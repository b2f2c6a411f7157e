// Rules on PyTorch's FSDP2 and its checkpoint format. The rule on its environment variables is next
// to that of Megatron FSDP.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kFlag = Opt::DistUseTorchFsdp2;

/// Whether only FSDP2 is requested. Another rule reports FSDP2 together with Megatron FSDP.
bool isFsdp2(const RuleContext &ctx) { return ctx.on(kFlag) && !ctx.wantsFsdp(); }

} // namespace

RULE_IF(Fsdp2Pipeline, isFsdp2(ctx) && d.pipelineParallel > 1,
        report({kFlag, ModelPipelineModelParallelSize}));
RULE_IF(Fsdp2Experts, isFsdp2(ctx) && d.expertParallel > 1,
        report({kFlag, ModelExpertModelParallelSize}));

RULE_CODE(Fsdp2DistributedOptimizer) {
  if (!isFsdp2(ctx) || !d.distributedOptimizer)
    return;
  Opt written = isWritten(OptimizerUseDistributedOptimizer) ? OptimizerUseDistributedOptimizer
                                                            : DdpUseDistributedOptimizer;
  report({kFlag, written}).remove(written);
}

RULE_IF(
    Fsdp2GradFusion, isFsdp2(ctx) && on(ModelGradientAccumulationFusion),
    report({kFlag, ModelGradientAccumulationFusion}).set(ModelGradientAccumulationFusion, false));

RULE_CODE(Fsdp2Format) {
  bool isServed =
      cfg().is(kFormat, CkptFormat::TorchDist) || cfg().is(kFormat, CkptFormat::TorchDcp);
  // Another rule refuses fsdp_dtensor without Megatron FSDP.
  bool isMegatrons = cfg().is(kFormat, CkptFormat::FsdpDtensor);
  if (isFsdp2(ctx) && has(kFormat) && !isServed && !isMegatrons)
    report({kFlag, kFormat}, {text(kFormat)}).set(kFormat, CkptFormat::TorchDcp);
}

RULE_IF(Fsdp2Tied, isFsdp2(ctx) && on(ModelShareEmbeddingsAndOutputWeights),
        report({kFlag, ModelShareEmbeddingsAndOutputWeights})
            .set(ModelShareEmbeddingsAndOutputWeights, false, Alternative));
RULE_IF(Fsdp2Fp16, isFsdp2(ctx) && on(ModelFp16), report({kFlag, ModelFp16, MixedPrecisionPreset}));
RULE_IF(Fsdp2Optimizer,
        isFsdp2(ctx) && !(cfg().is(OptimizerOptimizer, OptimizerKind::Adam) ||
                          cfg().is(OptimizerOptimizer, OptimizerKind::Sgd)),
        report({kFlag, OptimizerOptimizer}, {text(OptimizerOptimizer)}));
RULE_IF(Fsdp2Instances, isFsdp2(ctx) && d.dataParallelOuter > 1,
        report({kFlag, DdpNumDistributedOptimizerInstances}, {d.dataParallelOuter})
            .set(DdpNumDistributedOptimizerInstances, 1, Alternative));
RULE_IF(Fsdp2Gradients, isFsdp2(ctx) && d.params != DType::F32,
        report({kFlag, ModelParamsDtype}, {DiagArg(std::string(dtypeName(d.wire))),
                                           DiagArg(std::string(dtypeName(d.params)))}));
RULE_IF(Fsdp2Experimental, isFsdp2(ctx), report({kFlag}));
RULE_IF(TorchDcpTensor,
        cfg().is(kFormat, CkptFormat::TorchDcp) && isFsdp2(ctx) && d.tensorParallel > 1,
        report({kFormat, ModelTensorModelParallelSize, kFlag}, {d.tensorParallel})
            .set(kFormat, CkptFormat::TorchDist, Alternative));
RULE_IF(TorchDcpNeeds, cfg().is(kFormat, CkptFormat::TorchDcp) && !on(kFlag) && !wantsFsdp(),
        report({kFormat}).set(kFormat, CkptFormat::TorchDist, Alternative));

} // namespace shardc::config
