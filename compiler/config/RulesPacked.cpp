// Rules on data for fine-tuning: packs of rows, their loss and their order.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

bool readsPacks(const RuleContext &ctx) {
  return ctx.cfg().is(Opt::DatasetKind, DatasetKind::Packed);
}

} // namespace

RULE_IF(PackedLossPerToken,
        readsPacks(ctx) && !isVersion2(ctx) && !on(ModelCalculatePerTokenLoss) &&
            !isWritten(ModelCalculatePerTokenLoss),
        adjust(ModelCalculatePerTokenLoss, true, DatasetKind));
RULE_IF(PackedAverage,
        readsPacks(ctx) && on(DdpAverageInCollective) && on(ModelCalculatePerTokenLoss),
        adjust(DdpAverageInCollective, false, ModelCalculatePerTokenLoss));
RULE_IF(PackedFsdpV2, readsPacks(ctx) && isVersion2(ctx) && !isWritten(ModelCalculatePerTokenLoss),
        report({DdpMegatronFsdpVersion, DatasetKind}, {pathOf(ModelCalculatePerTokenLoss)})
            .set(ModelCalculatePerTokenLoss, false, Alternative));
RULE_IF(PackedOrder,
        readsPacks(ctx) && !has(TrainRampupBatchSize) && !has(TrainStepBatchSizeSchedule) &&
            cfg().is(DatasetDataloaderType, DataloaderType::Single) &&
            !isWritten(DatasetDataloaderType),
        adjust(DatasetDataloaderType, DataloaderType::Batch, DatasetKind));

RULE_CODE(BatchOrderChangesSize) {
  Opt type = DatasetDataloaderType;
  for (Opt changes : {TrainRampupBatchSize, TrainStepBatchSizeSchedule})
    if (cfg().is(type, DataloaderType::Batch) && has(changes))
      report({type, changes}, {pathOf(changes)})
          .set(type, DataloaderType::Single, Alternative)
          .remove(changes, Alternative);
}

RULE_EACH(PackedDocuments,
          (DatasetResetPositionIds, DatasetResetAttentionMask, DatasetInterDocumentMasking,
           DatasetEodMaskLoss),
          readsPacks(ctx) && on(opt), report({opt, DatasetKind}, {pathOf(opt)}).remove(opt));
RULE_IF(PackedMtp, readsPacks(ctx) && has(ModelMtpNumLayers) && num(ModelMtpNumLayers) > 0,
        report({ModelMtpNumLayers, DatasetKind}, {text(ModelMtpNumLayers)})
            .remove(ModelMtpNumLayers, Alternative));
RULE_IF(PreferenceData,
        has(PreferenceLoss) && !readsPacks(ctx) && !cfg().is(DatasetKind, DatasetKind::Synthetic),
        report({PreferenceLoss, DatasetKind}, {text(PreferenceLoss), text(DatasetKind)})
            .set(DatasetKind, DatasetKind::Packed, Alternative));
RULE_IF(PreferenceContextParallel, has(PreferenceLoss) && d.contextParallel > 1,
        report({ModelContextParallelSize, PreferenceLoss},
               {text(PreferenceLoss), text(ModelContextParallelSize)})
            .set(ModelContextParallelSize, 1, Alternative));

RULE_CODE(PreferenceLabelSmoothing) {
  Opt loss = PreferenceLoss, smoothing = PreferenceLabelSmoothing;
  if (!has(loss) || cfg().getFloat(smoothing) == 0)
    return;
  if (cfg().is(loss, PreferenceLoss::Ipo) || cfg().is(loss, PreferenceLoss::Orpo) ||
      cfg().is(loss, PreferenceLoss::Hinge))
    report({smoothing, loss}, {text(smoothing), text(loss)}).remove(smoothing);
}

RULE_CODE(PreferenceRouterLoss) {
  if (!has(PreferenceLoss) || !has(ModelNumMoeExperts))
    return;
  Opt weights = ModelMoeAuxLossCoeff, logits = ModelMoeZLossCoeff;
  auto refuse = [&](Opt opt, const NewValue &none) {
    report({opt, PreferenceLoss}, {text(PreferenceLoss), pathOf(opt), text(opt)})
        .set(opt, none, Alternative);
  };
  const Value::List &list = cfg().getList(weights);
  auto isZero = [](const Value &weight) { return *weight.asFloat() == 0; };
  if (!llvm::all_of(list, isZero))
    refuse(weights, Value::ofList(Value::List(list.size(), Value::ofFloat(0))));
  if (has(logits) && cfg().getFloat(logits) != 0)
    refuse(logits, 0.0);
}

} // namespace shardc::config
