// Rules on data for fine-tuning: packs of rows, their loss and their order.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

bool readsPacks(const RuleContext &ctx) {
  return ctx.cfg().is(Opt::DatasetKind, DatasetKind::Packed);
}

} // namespace

void rulePackedLossPerToken(RuleContext &ctx) {
  Opt opt = Opt::ModelCalculatePerTokenLoss;
  if (readsPacks(ctx) && !isVersion2(ctx) && !ctx.on(opt) && !ctx.isWritten(opt))
    ctx.adjust(opt, Value::ofBool(true), Opt::DatasetKind);
}

void rulePackedAverage(RuleContext &ctx) {
  Opt opt = Opt::DdpAverageInCollective;
  if (readsPacks(ctx) && ctx.on(opt) && ctx.on(Opt::ModelCalculatePerTokenLoss))
    ctx.adjust(opt, Value::ofBool(false), Opt::ModelCalculatePerTokenLoss);
}

void rulePackedVersion2(RuleContext &ctx) {
  Opt opt = Opt::ModelCalculatePerTokenLoss;
  if (readsPacks(ctx) && isVersion2(ctx) && !ctx.isWritten(opt))
    ctx.report({Opt::DdpMegatronFsdpVersion, Opt::DatasetKind}, {pathOf(opt)})
        .fix(ctx.fixSet(opt, Value::ofBool(false), FixItKind::Alternative));
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

void rulePreferenceData(RuleContext &ctx) {
  bool isRehearsal = ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic);
  if (ctx.has(Opt::PreferenceLoss) && !readsPacks(ctx) && !isRehearsal)
    ctx.report({Opt::PreferenceLoss, Opt::DatasetKind},
               {arg(ctx, Opt::PreferenceLoss), arg(ctx, Opt::DatasetKind)})
        .fix(ctx.fixSet(Opt::DatasetKind, Value::ofEnum(DatasetKind::Packed),
                        FixItKind::Alternative));
}

void rulePreferenceContext(RuleContext &ctx) {
  Opt size = Opt::ModelContextParallelSize;
  if (ctx.has(Opt::PreferenceLoss) && ctx.derived().contextParallel > 1)
    ctx.report({size, Opt::PreferenceLoss}, {arg(ctx, Opt::PreferenceLoss), arg(ctx, size)})
        .fix(ctx.fixSet(size, Value::ofInt(1), FixItKind::Alternative));
}

void rulePreferenceSmoothing(RuleContext &ctx) {
  Opt loss = Opt::PreferenceLoss, smoothing = Opt::PreferenceLabelSmoothing;
  if (!ctx.has(loss) || ctx.cfg().getFloat(smoothing) == 0)
    return;
  if (ctx.cfg().is(loss, PreferenceLoss::Ipo) || ctx.cfg().is(loss, PreferenceLoss::Orpo))
    ctx.report({smoothing, loss}, {arg(ctx, smoothing), arg(ctx, loss)})
        .fix(ctx.fixRemove(smoothing));
}

void rulePreferenceRouter(RuleContext &ctx) {
  if (!ctx.has(Opt::PreferenceLoss) || !ctx.has(Opt::ModelNumMoeExperts))
    return;
  Opt weights = Opt::ModelMoeAuxLossCoeff, logits = Opt::ModelMoeZLossCoeff;
  auto report = [&](Opt opt, Value none) {
    ctx.report({opt, Opt::PreferenceLoss},
               {arg(ctx, Opt::PreferenceLoss), pathOf(opt), arg(ctx, opt)})
        .fix(ctx.fixSet(opt, std::move(none), FixItKind::Alternative));
  };
  const Value::List &list = ctx.cfg().getList(weights);
  auto isZero = [](const Value &weight) { return *weight.asFloat() == 0; };
  if (!llvm::all_of(list, isZero))
    report(weights, Value::ofList(Value::List(list.size(), Value::ofFloat(0))));
  if (ctx.has(logits) && ctx.cfg().getFloat(logits) != 0)
    report(logits, Value::ofFloat(0));
}

} // namespace shardc::config
