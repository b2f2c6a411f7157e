// Data for fine-tuning: packs of rows, their loss and their order.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

bool readsPacks(const RuleContext &ctx) {
  return ctx.cfg().is(Opt::DatasetKind, DatasetKind::Packed);
}

} // namespace

void rulePackedLossPerToken(RuleContext &ctx) {
  Opt opt = Opt::ModelCalculatePerTokenLoss;
  // Neither a collective that averages nor version 2 of FSDP can divide by a count of tokens.
  bool isPossible = !ctx.on(Opt::DdpAverageInCollective) && !isVersion2(ctx);
  if (readsPacks(ctx) && isPossible && !ctx.on(opt) && !ctx.isWritten(opt))
    ctx.adjust(opt, Value::ofBool(true), Opt::DatasetKind);
}

void rulePackedOrder(RuleContext &ctx) {
  Opt opt = Opt::DatasetDataloaderType;
  if (readsPacks(ctx) && !ctx.has(Opt::TrainRampupBatchSize) &&
      !ctx.has(Opt::TrainStepBatchSizeSchedule) && ctx.cfg().is(opt, DataloaderType::Single) &&
      !ctx.isWritten(opt))
    ctx.adjust(opt, Value::ofEnum(DataloaderType::Batch), Opt::DatasetKind);
}

void ruleBatchOrderRamp(RuleContext &ctx) {
  Opt type = Opt::DatasetDataloaderType;
  for (Opt changes : {Opt::TrainRampupBatchSize, Opt::TrainStepBatchSizeSchedule})
    if (ctx.cfg().is(type, DataloaderType::Batch) && ctx.has(changes))
      ctx.report({type, changes}, {pathOf(changes)})
          .fix(ctx.fixSet(type, Value::ofEnum(DataloaderType::Single), FixItKind::Alternative))
          .fix(ctx.fixRemove(changes, FixItKind::Alternative));
}

void rulePackedDocuments(RuleContext &ctx) {
  for (Opt opt : {Opt::DatasetResetPositionIds, Opt::DatasetResetAttentionMask,
                  Opt::DatasetInterDocumentMasking, Opt::DatasetEodMaskLoss})
    if (readsPacks(ctx) && ctx.on(opt))
      ctx.report({opt, Opt::DatasetKind}, {pathOf(opt)}).fix(ctx.fixRemove(opt));
}

void rulePackedMtp(RuleContext &ctx) {
  Opt layers = Opt::ModelMtpNumLayers;
  if (readsPacks(ctx) && ctx.has(layers) && ctx.num(layers) > 0)
    ctx.report({layers, Opt::DatasetKind}, {arg(ctx, layers)})
        .fix(ctx.fixRemove(layers, FixItKind::Alternative));
}

} // namespace shardc::config
