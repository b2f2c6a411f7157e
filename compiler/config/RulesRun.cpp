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
            .fix(ctx.fixRemove(*a, FixItKind::Alternative))
            .fix(ctx.fixRemove(*b, FixItKind::Alternative));
}

/// The options that set the first and the last weight decay.
std::pair<Opt, Opt> weightDecayEnds(const RuleContext &ctx) {
  auto orConstant = [&](Opt opt) { return ctx.has(opt) ? opt : Opt::OptimizerWeightDecay; };
  return {orConstant(Opt::SchedulerStartWeightDecay), orConstant(Opt::SchedulerEndWeightDecay)};
}

} // namespace

void ruleAsyncSaveFormat(RuleContext &ctx) {
  if (ctx.on(Opt::CheckpointAsyncSave) && ctx.has(kFormat) &&
      !isFormat(ctx, {CkptFormat::TorchDist, CkptFormat::FsdpDtensor}))
    ctx.report({Opt::CheckpointAsyncSave, kFormat}, {arg(ctx, kFormat)});
}

void ruleAsyncSaveNeedsSave(RuleContext &ctx) {
  if (ctx.on(Opt::CheckpointAsyncSave) && !ctx.has(Opt::CheckpointSave))
    ctx.report({Opt::CheckpointAsyncSave, Opt::CheckpointSave})
        .fix(ctx.fixRemove(Opt::CheckpointAsyncSave));
}

void ruleMemorySavesNeedSave(RuleContext &ctx) {
  Opt interval = Opt::CheckpointInMemoryInterval;
  if (ctx.has(interval) && !ctx.has(Opt::CheckpointSave))
    ctx.report({interval, Opt::CheckpointSave}, {ctx.num(interval)}).fix(ctx.fixRemove(interval));
}

void ruleAsyncSaveWorker(RuleContext &ctx) {
  Opt worker = Opt::CheckpointUsePersistentCkptWorker;
  if (ctx.on(Opt::CheckpointAsyncSave) && !ctx.on(worker))
    ctx.report({Opt::CheckpointAsyncSave, worker}).fix(ctx.fixSet(worker, Value::ofBool(true)));
}

void ruleHfCopyFormat(RuleContext &ctx) {
  if (ctx.on(Opt::CheckpointAlsoSaveHfCheckpoint) && isFormat(ctx, {CkptFormat::FsdpDtensor}))
    ctx.report({Opt::CheckpointAlsoSaveHfCheckpoint, kFormat})
        .fix(ctx.fixRemove(Opt::CheckpointAlsoSaveHfCheckpoint));
}

void ruleHfCopyLocal(RuleContext &ctx) {
  Opt type = Opt::CheckpointNonPersistentCkptType;
  if (ctx.on(Opt::CheckpointAlsoSaveHfCheckpoint) && ctx.cfg().is(type, NonPersistentType::Local))
    ctx.report({Opt::CheckpointAlsoSaveHfCheckpoint, type})
        .fix(ctx.fixSet(type, Value::ofEnum(NonPersistentType::Global), FixItKind::Alternative));
}

void ruleMainParamsLoadOptim(RuleContext &ctx) {
  if (ctx.on(Opt::CheckpointLoadMainParamsFromCkpt) && ctx.on(Opt::CheckpointLoadOptim))
    ctx.report({Opt::CheckpointLoadMainParamsFromCkpt, Opt::CheckpointLoadOptim})
        .fix(ctx.fixSet(Opt::CheckpointLoadOptim, Value::ofBool(false), FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::CheckpointLoadMainParamsFromCkpt, FixItKind::Alternative));
}

void ruleMainParamsFsdp(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(Opt::CheckpointLoadMainParamsFromCkpt))
    ctx.report({ctx.fsdpFlag(), Opt::CheckpointLoadMainParamsFromCkpt})
        .fix(ctx.fixRemove(Opt::CheckpointLoadMainParamsFromCkpt));
}

void ruleCkptStepNeedsLoad(RuleContext &ctx) {
  if (ctx.has(Opt::CheckpointCkptStep) && !ctx.has(Opt::CheckpointLoad))
    ctx.report({Opt::CheckpointCkptStep, Opt::CheckpointLoad}, {ctx.num(Opt::CheckpointCkptStep)});
}

void ruleVerifyIntegrityFormat(RuleContext &ctx) {
  if (ctx.on(Opt::CheckpointVerifyIntegrity) && ctx.has(kFormat) &&
      !isFormat(ctx, {CkptFormat::TorchDist}))
    ctx.report({Opt::CheckpointVerifyIntegrity, kFormat}, {arg(ctx, kFormat)})
        .fix(ctx.fixRemove(Opt::CheckpointVerifyIntegrity));
}

void ruleNoGlooFormat(RuleContext &ctx) {
  bool isWritten = ctx.isWritten(kFormat) && ctx.has(kFormat) &&
                   !isFormat(ctx, {CkptFormat::TorchDist, CkptFormat::FsdpDtensor});
  if (!ctx.on(Opt::DistUseGlooProcessGroups) && ctx.derived().distributedOptimizer && isWritten)
    ctx.report({Opt::DistUseGlooProcessGroups, kFormat}, {arg(ctx, kFormat)});
}

void ruleZarrGone(RuleContext &ctx) {
  if (!ctx.wantsFsdp() && isFormat(ctx, {CkptFormat::Zarr}))
    ctx.report({kFormat}, {arg(ctx, kFormat)})
        .fix(ctx.fixSet(kFormat, Value::ofEnum(CkptFormat::TorchDist)));
}

void ruleNoShardCheckpoint(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.derived().strategy == ShardingStrategy::NoShard &&
      ctx.has(Opt::CheckpointSave))
    ctx.report({Opt::CheckpointSave, Opt::DdpDataParallelShardingStrategy});
}

void ruleSaveIntervalNeedsSave(RuleContext &ctx) {
  if (ctx.has(Opt::CheckpointSaveInterval) && !ctx.has(Opt::CheckpointSave))
    ctx.report({Opt::CheckpointSaveInterval, Opt::CheckpointSave},
               {ctx.num(Opt::CheckpointSaveInterval)});
}

void ruleDecentralizedGloo(RuleContext &ctx) {
  if (ctx.on(Opt::DistUseDecentralizedPg) && ctx.on(Opt::DistUseGlooProcessGroups))
    ctx.report({Opt::DistUseDecentralizedPg, Opt::DistUseGlooProcessGroups})
        .fix(ctx.fixSet(Opt::DistUseGlooProcessGroups, Value::ofBool(false)));
}

void ruleTrainingLengthTwice(RuleContext &ctx) {
  excludePairs(ctx, {Opt::TrainTrainIters, Opt::TrainTrainSamples, Opt::TrainNumEpochs});
}

void ruleSamplesAndIterations(RuleContext &ctx) {
  bool countsSamples = ctx.has(Opt::TrainTrainSamples);
  for (auto [iterations, samples] :
       {std::pair(Opt::SchedulerLrDecayIters, Opt::SchedulerLrDecaySamples),
        std::pair(Opt::SchedulerLrWarmupIters, Opt::SchedulerLrWarmupSamples),
        std::pair(Opt::SchedulerLrWsdDecayIters, Opt::SchedulerLrWsdDecaySamples)}) {
    auto [wrong, right] =
        countsSamples ? std::pair(iterations, samples) : std::pair(samples, iterations);
    // A length of zero is ignored, in steps and in samples.
    if (!ctx.isWritten(wrong) || !ctx.has(wrong) || ctx.num(wrong) == 0)
      continue;
    if (countsSamples)
      ctx.report({wrong, Opt::TrainTrainSamples},
                 {DiagArg(info(right).name), DiagArg(info(wrong).name)});
    else
      ctx.report({wrong, Opt::TrainTrainIters},
                 {DiagArg(info(right).name), DiagArg(info(wrong).name)});
  }
}

/// The reason why a length of the data is unknown.
static DiagArg problemOfLengths(const RuleContext &ctx) {
  const std::optional<DataLengths> &lengths = ctx.cfg().lengths();
  return DiagArg(lengths ? lengths->problem : std::string("the data were not opened"));
}

void ruleEpochsNeedSteps(RuleContext &ctx) {
  bool isKnown = ctx.cfg().lengths() && ctx.cfg().lengths()->train;
  if (ctx.has(Opt::TrainNumEpochs) && !ctx.has(Opt::TrainTrainIters) &&
      !ctx.has(Opt::TrainTrainSamples) && !isKnown)
    ctx.report({Opt::TrainNumEpochs}, {arg(ctx, Opt::TrainNumEpochs), problemOfLengths(ctx)});
}

void ruleFullValidationNeedsData(RuleContext &ctx) {
  Opt full = Opt::ValidationFullValidation;
  bool isKnown = ctx.cfg().lengths() && ctx.cfg().lengths()->valid;
  if (ctx.on(full) && ctx.has(Opt::ValidationEvalInterval) && !isKnown)
    ctx.report({full}, {problemOfLengths(ctx)});
}

void ruleDataloaderUnsupported(RuleContext &ctx) {
  Opt type = Opt::DatasetDataloaderType;
  if (ctx.cfg().is(type, DataloaderType::External))
    ctx.report({type}, {arg(ctx, type)})
        .fix(ctx.fixSet(type, Value::ofEnum(DataloaderType::Cyclic), FixItKind::Alternative))
        .fix(ctx.fixRemove(type, FixItKind::Alternative));
}

void ruleSamplesBelowBatch(RuleContext &ctx) {
  Opt samples = Opt::TrainTrainSamples, size = Opt::TrainGlobalBatchSize;
  int64_t first = ctx.derived().globalBatch;
  if (std::optional<BatchRamp> grows = rampOf(ctx.cfg())) {
    size = Opt::TrainRampupBatchSize;
    first = grows->sizeAfter(0);
  }
  if (std::optional<std::vector<BatchStep>> schedule = scheduleOf(ctx.cfg())) {
    size = Opt::TrainStepBatchSizeSchedule;
    first = schedule->front().size;
  }
  if (ctx.has(samples) && !ctx.has(Opt::TrainTrainIters) && ctx.num(samples) < first)
    ctx.report({samples, size}, {ctx.num(samples), first})
        .fix(ctx.fixSet(samples, Value::ofInt(first), FixItKind::Alternative));
}

void ruleRampupForm(RuleContext &ctx) {
  Opt ramp = Opt::TrainRampupBatchSize;
  if (!ctx.has(ramp))
    return;
  const Value::List &list = ctx.cfg().getList(ramp);
  if (list.size() != 3 || llvm::any_of(list, [](const Value &each) { return *each.asInt() < 1; }))
    ctx.report({ramp}, {arg(ctx, ramp)}).fix(ctx.fixRemove(ramp, FixItKind::Alternative));
}

void ruleRampupNeedsSamples(RuleContext &ctx) {
  for (Opt sizes : {Opt::TrainRampupBatchSize, Opt::TrainStepBatchSizeSchedule})
    for (Opt length : {Opt::TrainTrainIters, Opt::TrainNumEpochs})
      if (ctx.has(sizes) && ctx.has(length))
        ctx.report({sizes, length}, {pathOf(sizes), arg(ctx, sizes), pathOf(length)})
            .fix(ctx.fixRemove(sizes, FixItKind::Alternative));
}

void ruleCheckpointSettingsMissing(RuleContext &ctx) {
  const std::optional<CheckpointSettings> &saved = ctx.cfg().checkpoint();
  Opt model = Opt::CheckpointUseCheckpointArgs,
      parallel = Opt::CheckpointUseMpArgsFromCheckpointArgs,
      schedule = Opt::SchedulerUseCheckpointOptParamScheduler;
  Opt folder =
      ctx.has(Opt::CheckpointLoad) ? Opt::CheckpointLoad : Opt::CheckpointPretrainedCheckpoint;
  if (!ctx.has(folder) || (saved && saved->problem.empty()))
    return;
  DiagArg why(saved ? saved->problem : "nobody has read the checkpoint");
  for (Opt opt : {model, parallel, schedule}) {
    bool isIdle =
        (opt == parallel && !ctx.on(model)) || (opt == schedule && !ctx.has(Opt::CheckpointLoad));
    if (ctx.on(opt) && !isIdle)
      ctx.report({opt, folder}, {pathOf(opt), why});
  }
}

void ruleValidationSetsTogether(RuleContext &ctx) {
  Opt sets = Opt::ValidationMultipleValidationSets, full = Opt::ValidationFullValidation;
  if (ctx.on(sets) && ctx.on(full) && ctx.has(Opt::DatasetValidDataPath))
    ctx.report({sets, full}).fix(ctx.fixRemove(full, FixItKind::Alternative));
}

void ruleValidationSetsWeighted(RuleContext &ctx) {
  Opt sets = Opt::ValidationMultipleValidationSets, paths = Opt::DatasetValidDataPath;
  if (!ctx.on(sets) || !ctx.has(paths))
    return;
  double weight = 0;
  for (const Value &path : ctx.cfg().getList(paths))
    if (!llvm::StringRef(*path.asString()).getAsDouble(weight))
      return void(ctx.report({sets, paths}, {DiagArg(*path.asString())}));
}

void ruleValidationSetNames(RuleContext &ctx) {
  Opt names = Opt::ValidationValidationSetNames, paths = Opt::DatasetValidDataPath;
  if (!ctx.on(Opt::ValidationMultipleValidationSets) || !ctx.has(names) || !ctx.has(paths))
    return;
  auto numNames = static_cast<int64_t>(ctx.cfg().getList(names).size());
  auto numSets = static_cast<int64_t>(ctx.cfg().getList(paths).size());
  if (numNames != numSets)
    ctx.report({names, paths}, {numNames, numSets}).fix(ctx.fixRemove(names));
}

void ruleScheduleFromBoth(RuleContext &ctx) {
  Opt recipe = Opt::SchedulerOverrideOptParamScheduler,
      checkpoint = Opt::SchedulerUseCheckpointOptParamScheduler;
  if (ctx.on(recipe) && ctx.on(checkpoint))
    ctx.report({recipe, checkpoint})
        .fix(ctx.fixRemove(checkpoint, FixItKind::Alternative))
        .fix(ctx.fixRemove(recipe, FixItKind::Alternative));
}

void ruleStepScheduleForm(RuleContext &ctx) {
  Opt schedule = Opt::TrainStepBatchSizeSchedule;
  std::string problem;
  if (ctx.has(schedule) && !parseSchedule(ctx.cfg().getString(schedule),
                                          ctx.cfg().getIntOr(Opt::ModelSeqLength, 1), problem))
    ctx.report({schedule}, {arg(ctx, schedule), DiagArg(problem)})
        .fix(ctx.fixRemove(schedule, FixItKind::Alternative));
}

void ruleStepScheduleAlone(RuleContext &ctx) {
  Opt schedule = Opt::TrainStepBatchSizeSchedule;
  for (Opt other : {Opt::TrainGlobalBatchSize, Opt::TrainRampupBatchSize})
    if (ctx.has(schedule) && ctx.has(other) && ctx.cfg()[other].from.origin != Origin::Derived)
      ctx.report({schedule, other}, {pathOf(other)})
          .fix(ctx.fixRemove(other, FixItKind::Alternative))
          .fix(ctx.fixRemove(schedule, FixItKind::Alternative));
}

void ruleRampupStart(RuleContext &ctx) {
  Opt ramp = Opt::TrainRampupBatchSize, global = Opt::TrainGlobalBatchSize;
  if (std::optional<BatchRamp> asked = askedRamp(ctx.cfg()); asked && asked->start > asked->last)
    ctx.report({ramp, global}, {asked->start, asked->last})
        .fix(ctx.fixRemove(ramp, FixItKind::Alternative));
}

void ruleRampupIncrement(RuleContext &ctx) {
  Opt ramp = Opt::TrainRampupBatchSize, global = Opt::TrainGlobalBatchSize;
  std::optional<BatchRamp> asked = askedRamp(ctx.cfg());
  if (!asked || asked->start > asked->last)
    return;
  int64_t interval = asked->last - asked->start;
  if (interval % asked->increment != 0)
    ctx.report({ramp, global}, {asked->start, asked->increment, asked->last, interval})
        .fix(ctx.fixRemove(ramp, FixItKind::Alternative));
}

void ruleRampupSizes(RuleContext &ctx) {
  Opt sizes = phasesOption(ctx.cfg());
  if (ctx.derived().phases.size() > kBatchPhasesMax)
    ctx.report({sizes}, {pathOf(sizes), static_cast<int64_t>(kBatchPhasesMax)})
        .fix(ctx.fixRemove(sizes, FixItKind::Alternative));
}

void ruleScheduleTooShort(RuleContext &ctx) {
  int64_t steps = ctx.num(Opt::SchedulerMaxSteps), iters = ctx.num(Opt::TrainTrainIters);
  if (ctx.has(Opt::SchedulerMaxSteps) && steps < iters)
    ctx.report({Opt::SchedulerMaxSteps, Opt::TrainTrainIters}, {steps, iters});
}

void ruleWarmupTwice(RuleContext &ctx) {
  for (Opt opt : {Opt::SchedulerLrWarmupIters, Opt::SchedulerLrWarmupSamples})
    if (ctx.has(Opt::SchedulerLrWarmupFraction) && ctx.isWritten(opt) && ctx.num(opt) > 0)
      ctx.report({Opt::SchedulerLrWarmupFraction, opt}, {pathOf(opt)})
          .fix(ctx.fixRemove(opt, FixItKind::Alternative))
          .fix(ctx.fixRemove(Opt::SchedulerLrWarmupFraction, FixItKind::Alternative));
}

void ruleSamplesNotSteps(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.phase) // then the schedule counts samples
    return;
  for (auto [opt, steps] : {std::pair(Opt::SchedulerLrDecaySamples, d.decayLength),
                            std::pair(Opt::SchedulerLrWarmupSamples, d.warmupLength),
                            std::pair(Opt::SchedulerLrWsdDecaySamples, d.wsdDecayLength)}) {
    int64_t samples = ctx.num(opt);
    bool isExact = samples % d.globalBatch == 0 && samples / d.globalBatch == steps;
    if (ctx.has(Opt::TrainTrainSamples) && samples > 0 && !isExact)
      ctx.report({opt, Opt::TrainGlobalBatchSize}, {pathOf(opt), samples, d.globalBatch, steps});
  }
}

void ruleSkipTrainNothing(RuleContext &ctx) {
  Opt interval = Opt::ValidationEvalInterval, iters = Opt::ValidationEvalIters;
  bool takesAny = ctx.on(Opt::ValidationFullValidation) || ctx.num(iters) > 0;
  if (ctx.on(Opt::ValidationSkipTrain) && (!ctx.has(interval) || !takesAny))
    ctx.report({Opt::ValidationSkipTrain, interval, iters},
               {DiagArg(ctx.has(interval) ? ctx.text(interval) : "unset"), arg(ctx, iters)});
}

void ruleMinLrAboveLr(RuleContext &ctx) {
  if (ctx.cfg().getFloatOr(Opt::OptimizerMinLr, 0) > ctx.cfg().getFloatOr(Opt::OptimizerLr, 0))
    ctx.report({Opt::OptimizerMinLr, Opt::OptimizerLr},
               {arg(ctx, Opt::OptimizerMinLr), arg(ctx, Opt::OptimizerLr)});
}

void ruleWeightDecayEnds(RuleContext &ctx) {
  Opt style = Opt::SchedulerWeightDecayIncrStyle;
  if (ctx.cfg().is(style, WeightDecayStyle::Constant))
    return;
  for (Opt end : {Opt::SchedulerStartWeightDecay, Opt::SchedulerEndWeightDecay})
    if (!ctx.has(end))
      ctx.report({style, end}, {arg(ctx, style), pathOf(end)});
}

void ruleWeightDecayConstant(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt style = Opt::SchedulerWeightDecayIncrStyle;
  auto [first, last] = weightDecayEnds(ctx);
  if (ctx.cfg().is(style, WeightDecayStyle::Constant) && d.startWeightDecay != d.endWeightDecay)
    ctx.report({style, first, last}, {arg(ctx, first), arg(ctx, last)});
}

void ruleWeightDecayFalls(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  auto [first, last] = weightDecayEnds(ctx);
  if (!ctx.cfg().is(Opt::SchedulerWeightDecayIncrStyle, WeightDecayStyle::Constant) &&
      ctx.has(Opt::SchedulerStartWeightDecay) && ctx.has(Opt::SchedulerEndWeightDecay) &&
      d.startWeightDecay > d.endWeightDecay)
    ctx.report({first, last}, {arg(ctx, first), arg(ctx, last)});
}

void ruleDecoupledMinAlone(RuleContext &ctx) {
  Opt least = Opt::OptimizerDecoupledMinLr;
  if (ctx.has(least) && !ctx.has(Opt::OptimizerDecoupledLr))
    ctx.report({least, Opt::OptimizerDecoupledLr}, {arg(ctx, least)}).fix(ctx.fixRemove(least));
}

void ruleSkippedStepMissing(RuleContext &ctx) {
  Opt skipped = Opt::TrainIterationsToSkip;
  int64_t steps = ctx.derived().trainIters;
  if (!ctx.has(skipped) || steps == 0)
    return;
  for (const Value &step : ctx.cfg().getList(skipped))
    if (int64_t number = *step.asInt(); number < 1 || number > steps)
      return void(
          ctx.report({skipped, Opt::TrainTrainIters, Opt::TrainTrainSamples}, {number, steps}));
}

void ruleWsdNeedsDecay(RuleContext &ctx) {
  bool hasLength =
      ctx.has(Opt::SchedulerLrWsdDecayIters) || ctx.has(Opt::SchedulerLrWsdDecaySamples);
  if (ctx.cfg().is(Opt::SchedulerLrDecayStyle, DecayStyle::Wsd) && !hasLength)
    ctx.report({Opt::SchedulerLrDecayStyle, Opt::SchedulerLrWsdDecayIters});
}

/// Whether the data are read from files.
static bool readsFiles(const RuleContext &ctx) {
  return ctx.has(Opt::DatasetKind) && !ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic);
}

void ruleDataPathMissing(RuleContext &ctx) {
  if (readsFiles(ctx) && !trainingData(ctx.cfg()))
    ctx.report({Opt::DatasetKind, Opt::DatasetDataPath, Opt::DatasetBlend},
               {arg(ctx, Opt::DatasetKind)});
}

/// The option by which a run starts from trained weights, if one is set.
static Opt weightsOption(const RuleContext &ctx) {
  return ctx.on(Opt::CheckpointFinetune) ? Opt::CheckpointFinetune
                                         : Opt::CheckpointPretrainedCheckpoint;
}

void rulePretrainedWithoutData(RuleContext &ctx) {
  if (ctx.isWritten(Opt::DatasetKind) || !ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic))
    return;
  if (Opt weights = weightsOption(ctx); ctx.has(weights))
    ctx.report({weights}, {pathOf(weights)});
}

void ruleSyntheticWithData(RuleContext &ctx) {
  Opt kind = Opt::DatasetKind;
  for (Opt paths : kDataPaths)
    if (isNamed(ctx.cfg(), paths) && ctx.cfg().is(kind, DatasetKind::Synthetic))
      ctx.report({paths, kind},
                 {pathOf(paths), DiagArg(ctx.isWritten(kind) ? "leave 'synthetic' out, or the data"
                                                             : "no option names training data")})
          .fix(ctx.fixRemove(paths, FixItKind::Alternative));
}

void ruleDataKindUnknown(RuleContext &ctx) {
  if (std::optional<Opt> paths = trainingData(ctx.cfg()); paths && !ctx.has(Opt::DatasetKind))
    ctx.report({*paths, Opt::DatasetKind}, {pathOf(*paths), DiagArg(lastPath(ctx.cfg(), *paths))});
}

void ruleBytesForWeights(RuleContext &ctx) {
  Opt weights = weightsOption(ctx), tokenizer = Opt::DatasetTokenizer,
      vocabulary = Opt::ModelVocabSize;
  if (ctx.has(weights) && !ctx.isWritten(tokenizer) && ctx.has(vocabulary) &&
      ctx.num(vocabulary) != kBytesTokens && ctx.cfg().is(tokenizer, TokenizerKind::Bytes))
    ctx.report({weights, Opt::DatasetKind}, {pathOf(weights), arg(ctx, vocabulary)});
}

void ruleDataPathTwice(RuleContext &ctx) {
  excludePairs(ctx, {Opt::DatasetDataPath, Opt::DatasetBlend, Opt::DatasetTrainDataPath});
  for (Opt all : {Opt::DatasetDataPath, Opt::DatasetBlend})
    for (Opt one : {Opt::DatasetValidDataPath, Opt::DatasetTestDataPath})
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

void ruleNoTrainingData(RuleContext &ctx) {
  if (isSplitEmpty(ctx, 0))
    ctx.report({Opt::DatasetSplit}, {arg(ctx, Opt::DatasetSplit)})
        .fix(ctx.fixRemove(Opt::DatasetSplit, FixItKind::Alternative));
}

void ruleNoValidationData(RuleContext &ctx) {
  Opt interval = Opt::ValidationEvalInterval, valid = Opt::DatasetValidDataPath;
  if (!ctx.has(interval) || ctx.on(Opt::ValidationFullValidation) ||
      ctx.num(Opt::ValidationEvalIters) == 0)
    return;
  if (isSplitEmpty(ctx, 1))
    ctx.report({interval, Opt::DatasetSplit},
               {arg(ctx, interval), "'dataset.split = \"" +
                                        ctx.cfg().getStringOr(Opt::DatasetSplit, "") +
                                        "\"' leaves no data for validation"})
        .fix(ctx.fixRemove(interval, FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::DatasetSplit, FixItKind::Alternative));
  else if (ctx.has(Opt::DatasetTrainDataPath) && !ctx.has(valid))
    ctx.report({interval, Opt::DatasetTrainDataPath, valid},
               {arg(ctx, interval), "'dataset.train_data_path' is for training only, and "
                                    "'dataset.valid_data_path' is not set"})
        .fix(ctx.fixRemove(interval, FixItKind::Alternative));
}

void ruleTextNeedsBytes(RuleContext &ctx) {
  Opt tokenizer = Opt::DatasetTokenizer;
  if (ctx.cfg().is(Opt::DatasetKind, DatasetKind::Text) &&
      ctx.cfg().is(tokenizer, TokenizerKind::NoTokenizer))
    ctx.report({tokenizer, Opt::DatasetKind})
        .fix(ctx.fixSet(tokenizer, Value::ofEnum(TokenizerKind::Bytes)));
}

void ruleSamplesNeedText(RuleContext &ctx) {
  Opt samples = Opt::ValidationSamples, kind = Opt::DatasetKind, tokenizer = Opt::DatasetTokenizer;
  const bool isText =
      ctx.cfg().is(kind, DatasetKind::Packed) || (ctx.cfg().is(tokenizer, TokenizerKind::Bytes) &&
                                                  !ctx.cfg().is(kind, DatasetKind::Synthetic));
  if (ctx.has(samples) && ctx.num(samples) > 0 && !isText)
    ctx.report({samples, kind, tokenizer}, {arg(ctx, samples), arg(ctx, kind), arg(ctx, tokenizer)})
        .fix(ctx.fixRemove(samples));
}

void ruleVocabTooSmall(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::DatasetTokenizer, TokenizerKind::Bytes) && ctx.has(Opt::ModelVocabSize) &&
      ctx.num(Opt::ModelVocabSize) < kBytesTokens)
    ctx.report({Opt::ModelVocabSize, Opt::DatasetTokenizer, Opt::DatasetKind},
               {ctx.num(Opt::ModelVocabSize), kBytesTokens})
        .fix(ctx.fixSet(Opt::ModelVocabSize, Value::ofInt(kBytesTokens), FixItKind::Alternative));
}

void ruleResetNeedsEod(RuleContext &ctx) {
  if (ctx.has(Opt::DatasetEodToken))
    return;
  for (Opt opt :
       {Opt::DatasetResetPositionIds, Opt::DatasetResetAttentionMask, Opt::DatasetEodMaskLoss})
    if (ctx.on(opt))
      ctx.report({opt, Opt::DatasetEodToken}, {pathOf(opt)});
}

/// Reports the variables of section `env` that have this use, except for `allowed` ones.
static void reportVariables(RuleContext &ctx, VariableUse use,
                            llvm::ArrayRef<std::string> allowed = {}) {
  for (const EnvVariable &variable : ctx.cfg().env())
    if (useOfVariable(variable.name) == use && !llvm::is_contained(allowed, variable.name))
      ctx.reportAt(variable.setting.from.name, {DiagArg(variable.name)});
}

void ruleVariableOfJob(RuleContext &ctx) { reportVariables(ctx, VariableUse::Position); }

void ruleVariableSecret(RuleContext &ctx) { reportVariables(ctx, VariableUse::Secret); }

void ruleVariableNotAllowed(RuleContext &ctx) {
  reportVariables(ctx, VariableUse::Other, ctx.cfg().allowedVariables());
}

void ruleWandbRun(RuleContext &ctx) {
  Opt project = Opt::LoggerWandbProject;
  if (ctx.has(project) && !ctx.cfg().getString(project).empty())
    ctx.report({project}, {arg(ctx, project)}).fix(ctx.fixRemove(project));
}

} // namespace shardc::config
