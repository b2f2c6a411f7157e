// Upstream's checks for finetuning, adapters, and models of several modules.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

bool finetunesWithContext(const RuleContext &ctx) {
  return ctx.on(Opt::DatasetFinetuning) && ctx.derived().contextParallel > 1;
}

} // namespace

void ruleFinetuneContextLoss(RuleContext &ctx) {
  if (finetunesWithContext(ctx) && !ctx.on(Opt::ModelCalculatePerTokenLoss))
    ctx.report(
           {Opt::ModelCalculatePerTokenLoss, Opt::ModelContextParallelSize, Opt::DatasetFinetuning})
        .fix(ctx.fixSet(Opt::ModelCalculatePerTokenLoss, Value::ofBool(true)));
}

void ruleFinetuneContextAverage(RuleContext &ctx) {
  if (finetunesWithContext(ctx) && ctx.on(Opt::DdpAverageInCollective))
    ctx.report({Opt::DdpAverageInCollective, Opt::ModelContextParallelSize, Opt::DatasetFinetuning})
        .fix(ctx.fixSet(Opt::DdpAverageInCollective, Value::ofBool(false)));
}

void ruleFinetuneOptimizer(RuleContext &ctx) {
  Opt optimizer = Opt::CheckpointLoadOptim;
  if (ctx.on(Opt::CheckpointFinetune) && ctx.on(optimizer) && ctx.isWritten(optimizer))
    ctx.report({optimizer, Opt::CheckpointFinetune})
        .fix(ctx.fixRemove(optimizer, FixItKind::Alternative));
}

void rulePeftCheckpoint(RuleContext &ctx) {
  if (ctx.has(Opt::ModelPeft) && !ctx.has(Opt::CheckpointPretrainedCheckpoint))
    ctx.report({Opt::ModelPeft, Opt::CheckpointPretrainedCheckpoint});
}

void ruleMimoFsdp(RuleContext &ctx) {
  if (ctx.on(Opt::ModelMegatronMimo) && ctx.wantsFsdp())
    ctx.report({Opt::ModelMegatronMimo, ctx.fsdpFlag()});
}

} // namespace shardc::config
