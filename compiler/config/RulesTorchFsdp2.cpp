// Rules on PyTorch's FSDP2 and its checkpoint format. The rule on its environment variables is next
// to that of Megatron FSDP.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kFlag = Opt::DistUseTorchFsdp2;

/// Whether only FSDP2 is requested. Another rule reports FSDP2 together with Megatron FSDP.
bool isFsdp2(const RuleContext &ctx) { return ctx.on(kFlag) && !ctx.wantsFsdp(); }

} // namespace

void ruleFsdp2Pipeline(RuleContext &ctx) {
  if (isFsdp2(ctx) && ctx.derived().pipelineParallel > 1)
    ctx.report({kFlag, Opt::ModelPipelineModelParallelSize});
}

void ruleFsdp2Experts(RuleContext &ctx) {
  if (isFsdp2(ctx) && ctx.derived().expertParallel > 1)
    ctx.report({kFlag, Opt::ModelExpertModelParallelSize});
}

void ruleFsdp2DistributedOptimizer(RuleContext &ctx) {
  if (!isFsdp2(ctx) || !ctx.derived().distributedOptimizer)
    return;
  Opt written = ctx.isWritten(Opt::OptimizerUseDistributedOptimizer)
                    ? Opt::OptimizerUseDistributedOptimizer
                    : Opt::DdpUseDistributedOptimizer;
  ctx.report({kFlag, written}).fix(ctx.fixRemove(written));
}

void ruleFsdp2GradFusion(RuleContext &ctx) {
  Opt fusion = Opt::ModelGradientAccumulationFusion;
  if (isFsdp2(ctx) && ctx.on(fusion))
    ctx.report({kFlag, fusion}).fix(ctx.fixSet(fusion, Value::ofBool(false)));
}

void ruleFsdp2Format(RuleContext &ctx) {
  bool isServed =
      ctx.cfg().is(kFormat, CkptFormat::TorchDist) || ctx.cfg().is(kFormat, CkptFormat::TorchDcp);
  // Another rule refuses fsdp_dtensor without Megatron FSDP.
  bool isMegatrons = ctx.cfg().is(kFormat, CkptFormat::FsdpDtensor);
  if (isFsdp2(ctx) && ctx.has(kFormat) && !isServed && !isMegatrons)
    ctx.report({kFlag, kFormat}, {arg(ctx, kFormat)})
        .fix(ctx.fixSet(kFormat, Value::ofEnum(CkptFormat::TorchDcp)));
}

void ruleFsdp2Tied(RuleContext &ctx) {
  Opt tied = Opt::ModelShareEmbeddingsAndOutputWeights;
  if (isFsdp2(ctx) && ctx.on(tied))
    ctx.report({kFlag, tied}).fix(ctx.fixSet(tied, Value::ofBool(false), FixItKind::Alternative));
}

void ruleFsdp2Fp16(RuleContext &ctx) {
  if (isFsdp2(ctx) && ctx.on(Opt::ModelFp16))
    ctx.report({kFlag, Opt::ModelFp16, Opt::MixedPrecisionPreset});
}

void ruleFsdp2Optimizer(RuleContext &ctx) {
  Opt kind = Opt::OptimizerOptimizer;
  bool isPlain = ctx.cfg().is(kind, OptimizerKind::Adam) || ctx.cfg().is(kind, OptimizerKind::Sgd);
  if (isFsdp2(ctx) && !isPlain)
    ctx.report({kFlag, kind}, {arg(ctx, kind)});
}

void ruleFsdp2Instances(RuleContext &ctx) {
  Opt instances = Opt::DdpNumDistributedOptimizerInstances;
  if (isFsdp2(ctx) && ctx.derived().dataParallelOuter > 1)
    ctx.report({kFlag, instances}, {ctx.derived().dataParallelOuter})
        .fix(ctx.fixSet(instances, Value::ofInt(1), FixItKind::Alternative));
}

void ruleFsdp2Gradients(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (isFsdp2(ctx) && d.params != DType::F32)
    ctx.report({kFlag, Opt::ModelParamsDtype}, {DiagArg(std::string(dtypeName(d.wire))),
                                                DiagArg(std::string(dtypeName(d.params)))});
}

void ruleFsdp2Experimental(RuleContext &ctx) {
  if (isFsdp2(ctx))
    ctx.report({kFlag});
}

void ruleTorchDcpTensor(RuleContext &ctx) {
  if (ctx.cfg().is(kFormat, CkptFormat::TorchDcp) && isFsdp2(ctx) &&
      ctx.derived().tensorParallel > 1)
    ctx.report({kFormat, Opt::ModelTensorModelParallelSize, kFlag}, {ctx.derived().tensorParallel})
        .fix(ctx.fixSet(kFormat, Value::ofEnum(CkptFormat::TorchDist), FixItKind::Alternative));
}

void ruleTorchDcpNeeds(RuleContext &ctx) {
  if (ctx.cfg().is(kFormat, CkptFormat::TorchDcp) && !ctx.on(kFlag) && !ctx.wantsFsdp())
    ctx.report({kFormat}).fix(
        ctx.fixSet(kFormat, Value::ofEnum(CkptFormat::TorchDist), FixItKind::Alternative));
}

} // namespace shardc::config
