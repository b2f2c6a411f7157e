// Upstream's checks for finetuning, adapters, and models of several modules.
#include "compiler/config/RulePredicates.h"
#include "compiler/model/Freeze.h"

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

void ruleFreezeForm(RuleContext &ctx) {
  constexpr Opt kFreeze = Opt::ModelFreeze;
  if (!ctx.has(kFreeze) || !ctx.has(Opt::ModelNumLayers))
    return;
  std::vector<std::string> entries;
  for (const Value &entry : ctx.cfg().getList(kFreeze))
    entries.push_back(*entry.asString());
  if (model::Frozen read = model::readFrozen(entries, ctx.derived().numLayers); !read.isValid())
    ctx.report({kFreeze, Opt::ModelNumLayers}, {arg(ctx, kFreeze), DiagArg(read.problem)})
        .fix(ctx.fixRemove(kFreeze, FixItKind::Alternative));
}

void ruleKeepFrozenMemory(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::DdpKeepFrozen, KeepFrozen::IfFits) && ctx.has(Opt::ModelFreeze) &&
      ctx.derived().memoryBytes == 0)
    ctx.report({Opt::DdpKeepFrozen, Opt::ClusterGpu})
        .fix(ctx.fixSet(Opt::DdpKeepFrozen, Value::ofEnum(KeepFrozen::Always),
                        FixItKind::Alternative));
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
