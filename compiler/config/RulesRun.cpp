// Rules on checkpoints, process groups, the length of the run, the schedule, and data.
#include "compiler/config/Effect.h"
#include "compiler/config/RulePredicates.h"
#include "runtime/base/RecipeVariables.h"

namespace shardc::config {

namespace {

constexpr int64_t kBytesTokens = 257;

bool isFormat(const RuleContext &ctx, std::initializer_list<CkptFormat> formats) {
  return llvm::any_of(formats, [&](CkptFormat format) { return ctx.cfg().is(kFormat, format); });
}

/// Reports each pair of these options that both have a value.
void excludePairs(RuleContext &ctx, std::initializer_list<Opt> opts) {
  for (const Opt *a = opts.begin(); a != opts.end(); ++a)
    for (const Opt *b = a + 1; b != opts.end(); ++b)
      if (ctx.isWritten(*a) && ctx.isWritten(*b) && ctx.has(*a) && ctx.has(*b))
        ctx.report({*a, *b}, {pathOf(*a), pathOf(*b)})
            .remove(*a, FixItKind::Alternative)
            .remove(*b, FixItKind::Alternative);
}

/// The options that set the first and the last weight decay.
std::pair<Opt, Opt> weightDecayEnds(const RuleContext &ctx) {
  auto orConstant = [&](Opt opt) { return ctx.has(opt) ? opt : Opt::OptimizerWeightDecay; };
  return {orConstant(Opt::SchedulerStartWeightDecay), orConstant(Opt::SchedulerEndWeightDecay)};
}

} // namespace

RULE_IF(AsyncSaveFormat,
        on(CheckpointAsyncSave) && has(kFormat) &&
            !isFormat(ctx, {CkptFormat::TorchDist, CkptFormat::FsdpDtensor}),
        report({CheckpointAsyncSave, kFormat}, {text(kFormat)}));
RULE_IF(AsyncSaveNeedsSave, on(CheckpointAsyncSave) && !has(CheckpointSave),
        report({CheckpointAsyncSave, CheckpointSave}).remove(CheckpointAsyncSave));
RULE_IF(MemorySavesNeedSave, has(CheckpointInMemoryInterval) && !has(CheckpointSave),
        report({CheckpointInMemoryInterval, CheckpointSave}, {num(CheckpointInMemoryInterval)})
            .remove(CheckpointInMemoryInterval));
RULE_IF(AsyncSaveWorker, on(CheckpointAsyncSave) && !on(CheckpointUsePersistentCkptWorker),
        report({CheckpointAsyncSave, CheckpointUsePersistentCkptWorker})
            .set(CheckpointUsePersistentCkptWorker, true));
RULE_IF(HfCopyFormat,
        on(CheckpointAlsoSaveHfCheckpoint) && isFormat(ctx, {CkptFormat::FsdpDtensor}),
        report({CheckpointAlsoSaveHfCheckpoint, kFormat}).remove(CheckpointAlsoSaveHfCheckpoint));
RULE_IF(HfCopyLocal,
        on(CheckpointAlsoSaveHfCheckpoint) &&
            cfg().is(CheckpointNonPersistentCkptType, NonPersistentType::Local),
        report({CheckpointAlsoSaveHfCheckpoint, CheckpointNonPersistentCkptType})
            .set(CheckpointNonPersistentCkptType, NonPersistentType::Global, Alternative));
RULE_IF(MainParamsLoadOptim, on(CheckpointLoadMainParamsFromCkpt) && on(CheckpointLoadOptim),
        report({CheckpointLoadMainParamsFromCkpt, CheckpointLoadOptim})
            .set(CheckpointLoadOptim, false, Alternative)
            .remove(CheckpointLoadMainParamsFromCkpt, Alternative));
RULE_IF(MainParamsFsdp, wantsFsdp() && on(CheckpointLoadMainParamsFromCkpt),
        report({fsdpFlag(), CheckpointLoadMainParamsFromCkpt})
            .remove(CheckpointLoadMainParamsFromCkpt));
RULE_IF(CheckpointStepNeedsLoad, has(CheckpointCkptStep) && !has(CheckpointLoad),
        report({CheckpointCkptStep, CheckpointLoad}, {num(CheckpointCkptStep)}));
RULE_IF(VerifyIntegrityFormat,
        on(CheckpointVerifyIntegrity) && has(kFormat) && !isFormat(ctx, {CkptFormat::TorchDist}),
        report({CheckpointVerifyIntegrity, kFormat}, {text(kFormat)})
            .remove(CheckpointVerifyIntegrity));
RULE_IF(NoGlooFormat,
        !on(DistUseGlooProcessGroups) && d.distributedOptimizer && isWritten(kFormat) &&
            has(kFormat) && !isFormat(ctx, {CkptFormat::TorchDist, CkptFormat::FsdpDtensor}),
        report({DistUseGlooProcessGroups, kFormat}, {text(kFormat)}));
RULE_IF(ZarrGone, !wantsFsdp() && isFormat(ctx, {CkptFormat::Zarr}),
        report({kFormat}, {text(kFormat)}).set(kFormat, CkptFormat::TorchDist));
RULE_IF(NoShardCheckpoint,
        wantsFsdp() && d.strategy == ShardingStrategy::NoShard && has(CheckpointSave),
        report({CheckpointSave, DdpDataParallelShardingStrategy}));
RULE_IF(SaveIntervalWithoutSave, has(CheckpointSaveInterval) && !has(CheckpointSave),
        report({CheckpointSaveInterval, CheckpointSave}, {num(CheckpointSaveInterval)}));
RULE_IF(DecentralizedGloo, on(DistUseDecentralizedPg) && on(DistUseGlooProcessGroups),
        report({DistUseDecentralizedPg, DistUseGlooProcessGroups})
            .set(DistUseGlooProcessGroups, false));
RULE_DO(TrainingLengthTwice,
        excludePairs(ctx, {TrainTrainIters, TrainTrainSamples, TrainNumEpochs}));

RULE_CODE(SamplesAndIterations) {
  bool countsSamples = has(TrainTrainSamples);
  for (auto [iterations, samples] :
       {std::pair(SchedulerLrDecayIters, SchedulerLrDecaySamples),
        std::pair(SchedulerLrWarmupIters, SchedulerLrWarmupSamples),
        std::pair(SchedulerLrWsdDecayIters, SchedulerLrWsdDecaySamples)}) {
    auto [wrong, right] =
        countsSamples ? std::pair(iterations, samples) : std::pair(samples, iterations);
    // A length of zero is ignored, in steps and in samples.
    if (!isWritten(wrong) || !has(wrong) || num(wrong) == 0)
      continue;
    if (countsSamples)
      report({wrong, TrainTrainSamples}, {DiagArg(info(right).name), DiagArg(info(wrong).name)});
    else
      report({wrong, TrainTrainIters}, {DiagArg(info(right).name), DiagArg(info(wrong).name)});
  }
}

/// The reason why a length of the data is unknown.
static DiagArg problemOfLengths(const RuleContext &ctx) {
  const std::optional<DataLengths> &lengths = ctx.cfg().lengths();
  return DiagArg(lengths ? lengths->problem : std::string("the data were not opened"));
}

RULE_IF(EpochsNeedSteps,
        has(TrainNumEpochs) && !has(TrainTrainIters) && !has(TrainTrainSamples) &&
            !(cfg().lengths() && cfg().lengths()->train),
        report({TrainNumEpochs}, {text(TrainNumEpochs), problemOfLengths(ctx)}));
RULE_IF(FullValidationNeedsData,
        on(ValidationFullValidation) && has(ValidationEvalInterval) &&
            !(cfg().lengths() && cfg().lengths()->valid),
        report({ValidationFullValidation}, {problemOfLengths(ctx)}));
RULE_IF(DataloaderTypeUnsupported, cfg().is(DatasetDataloaderType, DataloaderType::External),
        report({DatasetDataloaderType}, {text(DatasetDataloaderType)})
            .set(DatasetDataloaderType, DataloaderType::Cyclic, Alternative)
            .remove(DatasetDataloaderType, Alternative));

RULE_CODE(SamplesBelowBatch) {
  Opt samples = TrainTrainSamples, size = TrainGlobalBatchSize;
  int64_t first = d.globalBatch;
  if (std::optional<BatchRamp> grows = rampOf(cfg())) {
    size = TrainRampupBatchSize;
    first = grows->sizeAfter(0);
  }
  if (std::optional<std::vector<BatchStep>> schedule = scheduleOf(cfg())) {
    size = TrainStepBatchSizeSchedule;
    first = schedule->front().size;
  }
  if (has(samples) && !has(TrainTrainIters) && num(samples) < first)
    report({samples, size}, {num(samples), first}).set(samples, first, Alternative);
}

RULE_CODE(RampupForm) {
  Opt ramp = TrainRampupBatchSize;
  if (!has(ramp))
    return;
  const Value::List &list = cfg().getList(ramp);
  if (list.size() != 3 || llvm::any_of(list, [](const Value &each) { return *each.asInt() < 1; }))
    report({ramp}, {text(ramp)}).remove(ramp, Alternative);
}

RULE_CODE(RampupNeedsSamples) {
  for (Opt sizes : {TrainRampupBatchSize, TrainStepBatchSizeSchedule})
    for (Opt length : {TrainTrainIters, TrainNumEpochs})
      if (has(sizes) && has(length))
        report({sizes, length}, {pathOf(sizes), text(sizes), pathOf(length)})
            .remove(sizes, Alternative);
}

RULE_CODE(CheckpointSettingsMissing) {
  const std::optional<CheckpointSettings> &saved = cfg().checkpoint();
  Opt model = CheckpointUseCheckpointArgs, parallel = CheckpointUseMpArgsFromCheckpointArgs,
      schedule = SchedulerUseCheckpointOptParamScheduler;
  Opt folder = has(CheckpointLoad) ? CheckpointLoad : CheckpointPretrainedCheckpoint;
  if (!has(folder) || (saved && saved->problem.empty()))
    return;
  DiagArg why(saved ? saved->problem : "nobody has read the checkpoint");
  for (Opt opt : {model, parallel, schedule}) {
    bool isIdle = (opt == parallel && !on(model)) || (opt == schedule && !has(CheckpointLoad));
    if (on(opt) && !isIdle)
      report({opt, folder}, {pathOf(opt), why});
  }
}

RULE_IF(ValidationSetsTogether,
        on(ValidationMultipleValidationSets) && on(ValidationFullValidation) &&
            has(DatasetValidDataPath),
        report({ValidationMultipleValidationSets, ValidationFullValidation})
            .remove(ValidationFullValidation, Alternative));

RULE_CODE(ValidationSetsWeighted) {
  Opt sets = ValidationMultipleValidationSets, paths = DatasetValidDataPath;
  if (!on(sets) || !has(paths))
    return;
  double weight = 0;
  for (const Value &path : cfg().getList(paths))
    if (!llvm::StringRef(*path.asString()).getAsDouble(weight))
      return void(report({sets, paths}, {DiagArg(*path.asString())}));
}

RULE_CODE(ValidationSetNames) {
  Opt names = ValidationValidationSetNames, paths = DatasetValidDataPath;
  if (!on(ValidationMultipleValidationSets) || !has(names) || !has(paths))
    return;
  auto numNames = static_cast<int64_t>(cfg().getList(names).size());
  auto numSets = static_cast<int64_t>(cfg().getList(paths).size());
  if (numNames != numSets)
    report({names, paths}, {numNames, numSets}).remove(names);
}

RULE_CODE(ScheduleFromBoth) {
  Opt recipe = SchedulerOverrideOptParamScheduler,
      checkpoint = SchedulerUseCheckpointOptParamScheduler;
  if (on(recipe) && on(checkpoint))
    report({recipe, checkpoint}).remove(checkpoint, Alternative).remove(recipe, Alternative);
}

RULE_CODE(StepScheduleForm) {
  Opt schedule = TrainStepBatchSizeSchedule;
  std::string problem;
  if (has(schedule) &&
      !parseSchedule(cfg().getString(schedule), cfg().getIntOr(ModelSeqLength, 1), problem))
    report({schedule}, {text(schedule), DiagArg(problem)}).remove(schedule, Alternative);
}

RULE_CODE(StepScheduleAlone) {
  Opt schedule = TrainStepBatchSizeSchedule;
  for (Opt other : {TrainGlobalBatchSize, TrainRampupBatchSize})
    if (has(schedule) && has(other) && cfg()[other].from.origin != Origin::Derived)
      report({schedule, other}, {pathOf(other)})
          .remove(other, Alternative)
          .remove(schedule, Alternative);
}

RULE_CODE(RampupStart) {
  Opt ramp = TrainRampupBatchSize, global = TrainGlobalBatchSize;
  if (std::optional<BatchRamp> asked = askedRamp(cfg()); asked && asked->start > asked->last)
    report({ramp, global}, {asked->start, asked->last}).remove(ramp, Alternative);
}

RULE_CODE(RampupIncrement) {
  Opt ramp = TrainRampupBatchSize, global = TrainGlobalBatchSize;
  std::optional<BatchRamp> asked = askedRamp(cfg());
  if (!asked || asked->start > asked->last)
    return;
  int64_t interval = asked->last - asked->start;
  if (interval % asked->increment != 0)
    report({ramp, global}, {asked->start, asked->increment, asked->last, interval})
        .remove(ramp, Alternative);
}

RULE_CODE(RampupSizes) {
  Opt sizes = phasesOption(cfg());
  if (d.phases.size() > kBatchPhasesMax)
    report({sizes}, {pathOf(sizes), static_cast<int64_t>(kBatchPhasesMax)})
        .remove(sizes, Alternative);
}

RULE_IF(ScheduleTooShort, has(SchedulerMaxSteps) && num(SchedulerMaxSteps) < num(TrainTrainIters),
        report({SchedulerMaxSteps, TrainTrainIters},
               {num(SchedulerMaxSteps), num(TrainTrainIters)}));
RULE_EACH(WarmupTwice, (SchedulerLrWarmupIters, SchedulerLrWarmupSamples),
          has(SchedulerLrWarmupFraction) && isWritten(opt) && num(opt) > 0,
          report({SchedulerLrWarmupFraction, opt}, {pathOf(opt)})
              .remove(opt, Alternative)
              .remove(SchedulerLrWarmupFraction, Alternative));

RULE_CODE(SamplesNotWholeSteps) {
  if (d.phase) // then the schedule counts samples
    return;
  for (auto [opt, steps] : {std::pair(SchedulerLrDecaySamples, d.decayLength),
                            std::pair(SchedulerLrWarmupSamples, d.warmupLength),
                            std::pair(SchedulerLrWsdDecaySamples, d.wsdDecayLength)}) {
    int64_t samples = num(opt);
    bool isExact = samples % d.globalBatch == 0 && samples / d.globalBatch == steps;
    if (has(TrainTrainSamples) && samples > 0 && !isExact)
      report({opt, TrainGlobalBatchSize}, {pathOf(opt), samples, d.globalBatch, steps});
  }
}

RULE_CODE(SkipTrainWithoutEvaluation) {
  Opt interval = ValidationEvalInterval, iters = ValidationEvalIters;
  bool takesAny = on(ValidationFullValidation) || num(iters) > 0;
  if (on(ValidationSkipTrain) && (!has(interval) || !takesAny))
    report({ValidationSkipTrain, interval, iters},
           {DiagArg(has(interval) ? text(interval) : "unset"), text(iters)});
}

RULE_IF(MinLrAboveLr, cfg().getFloatOr(OptimizerMinLr, 0) > cfg().getFloatOr(OptimizerLr, 0),
        report({OptimizerMinLr, OptimizerLr}, {text(OptimizerMinLr), text(OptimizerLr)}));

RULE_CODE(WeightDecayEnds) {
  Opt style = SchedulerWeightDecayIncrStyle;
  if (cfg().is(style, WeightDecayStyle::Constant))
    return;
  for (Opt end : {SchedulerStartWeightDecay, SchedulerEndWeightDecay})
    if (!has(end))
      report({style, end}, {text(style), pathOf(end)});
}

RULE_CODE(WeightDecayConstant) {
  Opt style = SchedulerWeightDecayIncrStyle;
  auto [first, last] = weightDecayEnds(ctx);
  if (cfg().is(style, WeightDecayStyle::Constant) && d.startWeightDecay != d.endWeightDecay)
    report({style, first, last}, {text(first), text(last)});
}

RULE_CODE(WeightDecayFalls) {
  auto [first, last] = weightDecayEnds(ctx);
  if (!cfg().is(SchedulerWeightDecayIncrStyle, WeightDecayStyle::Constant) &&
      has(SchedulerStartWeightDecay) && has(SchedulerEndWeightDecay) &&
      d.startWeightDecay > d.endWeightDecay)
    report({first, last}, {text(first), text(last)});
}

RULE_IF(DecoupledMinLrAlone, has(OptimizerDecoupledMinLr) && !has(OptimizerDecoupledLr),
        report({OptimizerDecoupledMinLr, OptimizerDecoupledLr}, {text(OptimizerDecoupledMinLr)})
            .remove(OptimizerDecoupledMinLr));

RULE_CODE(SkippedStepMissing) {
  Opt skipped = TrainIterationsToSkip;
  int64_t steps = d.trainIters;
  if (!has(skipped) || steps == 0)
    return;
  for (const Value &step : cfg().getList(skipped))
    if (int64_t number = *step.asInt(); number < 1 || number > steps)
      return void(report({skipped, TrainTrainIters, TrainTrainSamples}, {number, steps}));
}

RULE_IF(WsdNeedsDecay,
        cfg().is(SchedulerLrDecayStyle, DecayStyle::Wsd) &&
            !(has(SchedulerLrWsdDecayIters) || has(SchedulerLrWsdDecaySamples)),
        report({SchedulerLrDecayStyle, SchedulerLrWsdDecayIters}));

/// Whether the data are read from files.
static bool readsFiles(const RuleContext &ctx) {
  return ctx.has(Opt::DatasetKind) && !ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic);
}

RULE_IF(DataPathMissing, readsFiles(ctx) && !trainingData(cfg()),
        report({DatasetKind, DatasetDataPath, DatasetBlend}, {text(DatasetKind)}));

/// The option by which a run starts from trained weights, if one is set.
static Opt weightsOption(const RuleContext &ctx) {
  return ctx.on(Opt::CheckpointFinetune) ? Opt::CheckpointFinetune
                                         : Opt::CheckpointPretrainedCheckpoint;
}

RULE_CODE(PretrainedWithoutData) {
  if (isWritten(DatasetKind) || !cfg().is(DatasetKind, DatasetKind::Synthetic))
    return;
  if (Opt weights = weightsOption(ctx); has(weights))
    report({weights}, {pathOf(weights)});
}

RULE_CODE(SyntheticWithData) {
  Opt kind = DatasetKind;
  for (Opt paths : kDataPaths)
    if (isNamed(cfg(), paths) && cfg().is(kind, DatasetKind::Synthetic))
      report({paths, kind},
             {pathOf(paths), DiagArg(isWritten(kind) ? "leave 'synthetic' out, or the data"
                                                     : "no option names training data")})
          .remove(paths, Alternative);
}

RULE_CODE(DataKindUnknown) {
  if (std::optional<Opt> paths = trainingData(cfg()); paths && !has(DatasetKind))
    report({*paths, DatasetKind}, {pathOf(*paths), DiagArg(lastPath(cfg(), *paths))});
}

RULE_CODE(BytesForWeights) {
  Opt weights = weightsOption(ctx), tokenizer = DatasetTokenizer, vocabulary = ModelVocabSize;
  if (has(weights) && !isWritten(tokenizer) && has(vocabulary) && num(vocabulary) != kBytesTokens &&
      cfg().is(tokenizer, TokenizerKind::Bytes))
    report({weights, DatasetKind}, {pathOf(weights), text(vocabulary)});
}

RULE_CODE(DataPathTwice) {
  excludePairs(ctx, {DatasetDataPath, DatasetBlend, DatasetTrainDataPath});
  for (Opt all : {DatasetDataPath, DatasetBlend})
    for (Opt one : {DatasetValidDataPath, DatasetTestDataPath})
      excludePairs(ctx, {all, one});
}

/// Whether the splits share the same data, and this split's share is 0.
static bool isSplitEmpty(const RuleContext &ctx, size_t split) {
  bool isOfAll = ctx.has(Opt::DatasetDataPath) || ctx.has(Opt::DatasetBlend);
  llvm::SmallVector<llvm::StringRef, 3> shares;
  std::string text = ctx.cfg().getStringOr(Opt::DatasetSplit, "");
  llvm::StringRef(text).split(shares, ',');
  double share = 0;
  return isOfAll && readsFiles(ctx) && split < shares.size() &&
         !shares[split].trim().getAsDouble(share) && share == 0;
}

RULE_IF(NoTrainingData, isSplitEmpty(ctx, 0),
        report({DatasetSplit}, {text(DatasetSplit)}).remove(DatasetSplit, Alternative));

RULE_CODE(NoValidationData) {
  Opt interval = ValidationEvalInterval, valid = DatasetValidDataPath;
  if (!has(interval) || on(ValidationFullValidation) || num(ValidationEvalIters) == 0)
    return;
  if (isSplitEmpty(ctx, 1))
    report({interval, DatasetSplit},
           {text(interval), "'dataset.split = \"" + cfg().getStringOr(DatasetSplit, "") +
                                "\"' leaves no data for validation"})
        .remove(interval, Alternative)
        .remove(DatasetSplit, Alternative);
  else if (has(DatasetTrainDataPath) && !has(valid))
    report({interval, DatasetTrainDataPath, valid},
           {text(interval), "'dataset.train_data_path' is for training only, and "
                            "'dataset.valid_data_path' is not set"})
        .remove(interval, Alternative);
}

RULE_IF(TextNeedsBytes,
        cfg().is(DatasetKind, DatasetKind::Text) &&
            cfg().is(DatasetTokenizer, TokenizerKind::NoTokenizer),
        report({DatasetTokenizer, DatasetKind}).set(DatasetTokenizer, TokenizerKind::Bytes));

RULE_CODE(SamplesNeedText) {
  Opt samples = ValidationSamples, kind = DatasetKind, tokenizer = DatasetTokenizer;
  const bool isText =
      cfg().is(kind, DatasetKind::Packed) ||
      (cfg().is(tokenizer, TokenizerKind::Bytes) && !cfg().is(kind, DatasetKind::Synthetic));
  if (has(samples) && num(samples) > 0 && !isText)
    report({samples, kind, tokenizer}, {text(samples), text(kind), text(tokenizer)})
        .remove(samples);
}

RULE_IF(VocabularyTooSmall,
        cfg().is(DatasetTokenizer, TokenizerKind::Bytes) && has(ModelVocabSize) &&
            num(ModelVocabSize) < kBytesTokens,
        report({ModelVocabSize, DatasetTokenizer, DatasetKind}, {num(ModelVocabSize), kBytesTokens})
            .set(ModelVocabSize, kBytesTokens, Alternative));

RULE_CODE(ResetNeedsDocumentEnd) {
  if (has(DatasetEodToken))
    return;
  for (Opt opt : {DatasetResetPositionIds, DatasetResetAttentionMask, DatasetEodMaskLoss})
    if (on(opt))
      report({opt, DatasetEodToken}, {pathOf(opt)});
}

/// Reports the variables of section `env` that have this use, except for `allowed` ones.
static void reportVariables(RuleContext &ctx, VariableUse use,
                            llvm::ArrayRef<std::string> allowed = {}) {
  for (const EnvVariable &variable : ctx.cfg().env())
    if (useOfVariable(variable.name) == use && !llvm::is_contained(allowed, variable.name))
      ctx.reportAt(variable.setting.from.name, {DiagArg(variable.name)});
}

RULE_DO(VariableOfJob, reportVariables(ctx, VariableUse::Position));
RULE_DO(VariableSecret, reportVariables(ctx, VariableUse::Secret));
RULE_DO(VariableNotAllowed, reportVariables(ctx, VariableUse::Other, cfg().allowedVariables()));
RULE_IF(WandbRunUnsupported,
        has(LoggerWandbProject) && !cfg().getString(LoggerWandbProject).empty(),
        report({LoggerWandbProject}, {text(LoggerWandbProject)}).remove(LoggerWandbProject));

} // namespace shardc::config
