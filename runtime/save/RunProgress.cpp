// Computes what Megatron stores under `args`, `opt_param_scheduler` and the optimizer's groups, so
// that its own loader accepts the checkpoint.
#include "runtime/save/RunProgress.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/base/Json.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/run/ModelFlops.h"
#include "runtime/run/RunLoop.h"

namespace shardc::save {
namespace {

using checkpoint::PlainEntries;
using checkpoint::PlainItems;
using checkpoint::PlainValue;

/// An item of a list. Plans store items as text; numbers are converted.
PlainValue plainItem(const std::string &text) {
  int64_t whole = 0;
  if (parseNumber(text, whole))
    return whole;
  double number = 0;
  if (parseNumber(text, number))
    return number;
  return text;
}

PlainValue plainValue(const plan::JobValue &value) {
  if (const auto *list = std::get_if<std::vector<std::string>>(&value)) {
    PlainItems items;
    for (const std::string &item : *list)
      items.push_back(plainItem(item));
    return items;
  }
  return std::visit(
      [](const auto &v) -> PlainValue {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<std::string>>)
          return {};
        else
          return PlainValue(v);
      },
      value);
}

// Fields in the state of Megatron's DynamicGradScaler.
constexpr const char *kScale = "scale";
constexpr const char *kGrowth = "growth_tracker";
constexpr const char *kHysteresis = "hysteresis_tracker";

constexpr double kWholeMinutesMax = 1e15; ///< above it, not all whole numbers are exact

/// Steps between evaluations in the program; 0 if it has none.
int64_t evaluationInterval(const std::vector<plan::ProgramNode> &nodes) {
  for (const plan::ProgramNode &node : nodes) {
    if (node.kind == plan::ProgramNode::Every)
      return node.count;
    if (int64_t found = evaluationInterval(node.children); found > 0)
      return found;
  }
  return 0;
}

int64_t evaluationsOf(const plan::Plan &plan, int64_t step, int64_t interval) {
  return run::evaluationsUpTo(step, interval, plan.job.validation.startEvalAtIter,
                              plan::skippedSteps(plan.job).value_or(std::vector<int64_t>()));
}

double lastWeightDecay(const plan::Plan &plan) {
  double written = plan.job.scheduler.endWeightDecay;
  return written >= 0 ? written : plan.job.optimizer.weightDecay;
}

int64_t samplesOfEvaluation(const plan::Plan &plan) {
  plan::BatchSizes sizes = plan::batchSizesOf(plan.job, /*isEval=*/true);
  return plan.job.validation.fullValidation
             ? plan.job.derived.evalMicrobatches * sizes.micro *
                   plan.groupSize(plan::groupOfKind(plan, plan::GroupKind::Data))
             : plan.job.validation.evalIters * sizes.global;
}

PlainEntries schedulerOf(const plan::Plan &plan, const Progress &progress) {
  int64_t batch = plan.job.train.globalBatchSize; // upstream counts samples
  bool countsSamples = plan.job.derived.stepSamples > 0;
  double startDecay = plan.job.scheduler.startWeightDecay;
  int64_t samples = plan.job.train.trainSamples; // samples of the whole run
  return {
      {"max_lr", plan.job.optimizer.lr},
      {"lr_warmup_steps",
       countsSamples ? plan.job.derived.lrWarmupSamples : plan.job.derived.lrWarmupIters * batch},
      {"num_steps", countsSamples ? progress.scheduledSamples : progress.applied * batch},
      {"lr_decay_style", plan.job.text(plan::JobField::scheduler_lrDecayStyle)},
      {"lr_decay_steps",
       countsSamples ? plan.job.derived.lrDecaySamples : plan.job.derived.lrDecayIters * batch},
      {"min_lr", plan.job.optimizer.minLr},
      {"start_wd", startDecay >= 0 ? startDecay : plan.job.optimizer.weightDecay},
      {"end_wd", lastWeightDecay(plan)},
      {"wd_incr_style", plan.job.text(plan::JobField::scheduler_weightDecayIncrStyle)},
      {"wd_incr_steps", samples > 0 ? samples : plan.job.train.trainIters * batch},
  };
}

/// The plan's settings, including options that are off and that the plan therefore omits, since
/// readers of a checkpoint may have other defaults. Without those that passes may have chosen, and
/// that another run of the recipe chooses again.
std::vector<plan::Job::Entry> settingsOf(const plan::Job &job) {
  std::vector<plan::Job::Entry> all = job.entries();
  for (size_t i = 0; i < plan::kJobFields; ++i) {
    auto field = static_cast<plan::JobField>(i);
    std::string_view path = plan::jobInfo(field).path;
    bool isOfPeft = path.starts_with("peft.") && job.text(plan::JobField::peft_scheme).empty();
    if (!job.has(field) && job.value(field) == plan::JobValue(false) && !isOfPeft)
      all.emplace_back(path, false);
  }
  using enum plan::JobField;
  std::vector<plan::JobField> open = {ddp_keepFrozen, model_recomputeLayers, model_tpCommOverlap};
  if (job.model.pipelineSplit == plan::Job::PipelineSplit::Balanced)
    open.push_back(model_pipelineModelParallelLayout);
  std::erase_if(all, [&](const plan::Job::Entry &entry) {
    return std::ranges::find(open, entry.first, [](plan::JobField field) {
             return plan::jobInfo(field).path;
           }) != open.end();
  });
  std::ranges::sort(all, {}, &plan::Job::Entry::first);
  return all;
}

/// Options by the last segment of their paths, which are Megatron's names.
PlainEntries argumentsOf(const plan::Plan &plan) {
  std::map<std::string, PlainValue> args;
  for (std::string_view section : {"train.", "optimizer.", "scheduler.", "ddp.", "dist.", "model."})
    for (const auto &[path, value] : settingsOf(plan.job))
      if (path.starts_with(section))
        args[path.substr(section.size())] = plainValue(value);
  // Megatron writes a list for all layers, or one number n for every n-th layer.
  for (const char *pattern : {"moe_layer_freq", "no_rope_freq"})
    if (auto found = args.find(pattern); found != args.end())
      if (const auto *items = found->second.as<PlainItems>(); items && items->size() == 1)
        found->second = PlainValue(items->front());
  // Megatron's trainer and its library use different names for this.
  if (auto experts = args.find("num_moe_experts"); experts != args.end())
    args["num_experts"] = experts->second;
  double minutes = plan.job.dist.distributedTimeoutMinutes; // Megatron accepts whole minutes only
  if (args.contains("distributed_timeout_minutes") && minutes == std::trunc(minutes) &&
      minutes < kWholeMinutesMax)
    args["distributed_timeout_minutes"] = static_cast<int64_t>(minutes);
  args["swiglu"] = plan.job.model.gatedLinearUnit;
  args["squared_relu"] = plan.job.model.activationFunc == plan::Job::Activation::SquaredRelu;
  args["apply_layernorm_1p"] = plan.job.model.layernormZeroCenteredGamma;
  args["add_position_embedding"] =
      plan.job.model.positionEmbeddingType == plan::Job::PositionEmbedding::LearnedAbsolute;
  args["padded_vocab_size"] = plan.job.derived.paddedVocabSize;
  args["tokenizer_type"] = plan.job.text(plan::JobField::dataset_tokenizer);
  args["ckpt_format"] = plan.job.text(plan::JobField::checkpoint_ckptFormat);
  args["seed"] = plan.job.rng.seed;
  args["no_save_optim"] = !plan.job.checkpoint.saveOptim; // loaders then do not request it
  args["no_save_rng"] = !plan.job.checkpoint.saveRng;
  return {args.begin(), args.end()};
}

/// Prints a value as JSON, which is valid YAML.
std::string scalarText(const plan::JobValue &value) {
  return std::visit([](const auto &v) { return toText(nlohmann::json(v)); }, value);
}

} // namespace

Progress progressAfter(const plan::Plan &plan, const Progress &begin, const StepState &state) {
  Progress now = begin;
  int64_t batch = plan::batchSizesOf(plan.job, /*isEval=*/false).global;
  int64_t samples = (state.step - begin.step) * batch;
  now.step = state.step;
  now.applied = state.applied;
  now.scheduledSamples = state.samples;
  now.lr = state.lr, now.decoupledLr = state.decoupledLr;
  now.weightDecay = state.weightDecay;
  if (plan::scalingOf(plan.job) == plan::Scaling::Dynamic)
    now.lossScaler = {state.lossScale, state.growthTracker, state.hysteresisTracker};
  now.consumedTrainSamples += samples;
  std::vector<int64_t> skipped = plan::skippedSteps(plan.job).value_or(std::vector<int64_t>());
  int64_t left = plan::countSkipped(skipped, begin.step, state.step) * batch;
  now.skippedTrainSamples += left;
  if (int64_t interval = plan.roles.empty() ? 0 : evaluationInterval(plan.roles[0].program))
    now.consumedValidSamples +=
        (evaluationsOf(plan, state.step, interval) - evaluationsOf(plan, begin.step, interval)) *
        samplesOfEvaluation(plan);
  // Whole numbers have the same sum in a run that continues as in one that was never stopped.
  now.floatingPointOperations +=
      static_cast<double>(samples - left) *
      std::round(static_cast<double>(plan.job.model.seqLength) * run::modelFlopsPerToken(plan));
  return now;
}

int64_t batchesConsumed(const plan::Plan &plan, const Progress &progress) {
  int64_t batch = plan::batchSizesOf(plan.job, /*isEval=*/false).global;
  return (progress.consumedTrainSamples - plan.job.derived.samplesBefore) /
         std::max<int64_t>(batch, 1);
}

checkpoint::RunState runStateOf(const plan::Plan &plan, const Progress &progress) {
  checkpoint::RunState state;
  state.iteration = progress.step;
  state.args = argumentsOf(plan);
  if (!progress.kernels.empty())
    state.args.emplace_back(kKernelsArgument, progress.kernels);
  if (plan.job.checkpoint.saveOptim)
    state.scheduler = schedulerOf(plan, progress);
  if (plan.job.checkpoint.saveOptim && progress.lossScaler)
    state.gradScaler = {{kScale, static_cast<double>(progress.lossScaler->scale)},
                        {kGrowth, int64_t{progress.lossScaler->growthTracker}},
                        {kHysteresis, int64_t{progress.lossScaler->hysteresisTracker}}};
  state.consumedTrainSamples = progress.consumedTrainSamples;
  state.skippedTrainSamples = progress.skippedTrainSamples;
  state.consumedValidSamples = progress.consumedValidSamples;
  state.floatingPointOperations = progress.floatingPointOperations;
  return state;
}

std::optional<LossScaler> lossScalerOf(const checkpoint::RunState &state) {
  auto numberOf = [&](std::string_view field) {
    const PlainValue *value = checkpoint::findEntry(state.gradScaler, field);
    return value != nullptr ? value->number() : std::nullopt;
  };
  std::optional<double> scale = numberOf(kScale);
  if (!scale || !(*scale > 0) || !std::isfinite(static_cast<float>(*scale)))
    return std::nullopt;
  auto trackerOf = [&](std::string_view field) {
    constexpr double kTrackerMax = 1e9;
    return static_cast<int32_t>(std::clamp(numberOf(field).value_or(0), -kTrackerMax, kTrackerMax));
  };
  return LossScaler{static_cast<float>(*scale), trackerOf(kGrowth), trackerOf(kHysteresis)};
}

namespace {

const plan::Cell *cellOf(const plan::Plan &plan, uint32_t index, plan::CellKind kind) {
  if (index >= plan.roles.size())
    return nullptr;
  const plan::Role &role = plan.roles[index];
  uint32_t cell = plan::findCell(role, kind);
  return cell == plan::kNone ? nullptr : &role.cells[cell];
}

} // namespace

const plan::Cell *amaxHistoryOf(const plan::Plan &plan, uint32_t role) {
  return cellOf(plan, role, plan::CellKind::AmaxHistory);
}

const plan::Cell *expertBiasOf(const plan::Plan &plan, uint32_t role) {
  return cellOf(plan, role, plan::CellKind::ExpertBias);
}

std::optional<int64_t> rankWithExpertBias(const plan::Plan &plan) {
  for (uint32_t role = 0; role < plan.roles.size(); ++role)
    if (expertBiasOf(plan, role) != nullptr)
      for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
        if (expertBiasOf(plan, exec::roleOf(plan, rank)) != nullptr)
          return rank;
  return std::nullopt;
}

std::vector<ExpertBuffer> expertBuffersOf(const plan::Plan &plan) {
  std::vector<ExpertBuffer> buffers;
  if (!rankWithExpertBias(plan))
    return buffers;
  constexpr std::string_view kRouter = ".mlp.router.", kWeight = "weight";
  for (const plan::Param &param : plan.params) {
    std::string_view name = param.name;
    if (!name.ends_with(kWeight))
      continue;
    name.remove_suffix(kWeight.size());
    if (name.ends_with(kRouter))
      buffers.push_back({fmt::format("{}expert_bias", name), param.wholeType().shape[0]});
  }
  return buffers;
}

Status addAmaxHistory(const plan::Plan &plan, const Progress &progress,
                      checkpoint::RankWriter &writer) {
  if (progress.amaxHistory.empty() || !plan.job.checkpoint.saveOptim)
    return Status::ok();
  const plan::Type &type = amaxHistoryOf(plan)->type;
  checkpoint::Shape shape(type.shape.begin(), type.shape.begin() + type.rank);
  return writer.add(checkpoint::TensorSlice{kAmaxHistory,
                                            checkpoint::Element::F32,
                                            shape,
                                            {checkpoint::Shape(shape.size()), shape},
                                            progress.amaxHistory.data()});
}

checkpoint::GroupKey groupKeyOf(const plan::Plan &plan, const plan::Param &param) {
  return {plan::isExpertParallel(plan.job, param), param.wdMult, param.lrMult, param.isDecoupled,
          plan::isOfRest(plan, param)};
}

/// The settings of the optimizer group to which a parameter belongs. Decoupled parameters
/// (embeddings and head with their own learning rate) and those of the rest optimizer beside Muon
/// have settings of their own.
checkpoint::GroupMeta groupMetaOf(const plan::Plan &plan, size_t index, const Progress &progress) {
  const plan::Param &param = plan.params[index];
  checkpoint::GroupMeta meta;
  meta.isExpertParallel = plan::isExpertParallel(plan.job, param);
  meta.lrMult = param.lrMult;
  meta.weightDecayMult = param.wdMult;
  meta.defaultConfig = param.lrMult == 1 && param.wdMult == 1 && !param.isDecoupled;
  const plan::Job::Optimizer &optimizer = plan.job.optimizer;
  bool hasOwnLeast = param.isDecoupled && optimizer.decoupledMinLr >= 0;
  meta.maxLr = param.isDecoupled ? optimizer.decoupledLr : optimizer.lr;
  meta.minLr = hasOwnLeast ? optimizer.decoupledMinLr : optimizer.minLr;
  meta.lr =
      static_cast<double>(param.isDecoupled ? progress.decoupledLr : progress.lr) * param.lrMult;
  meta.beta1 = optimizer.adamBeta1, meta.beta2 = optimizer.adamBeta2, meta.eps = optimizer.adamEps;
  std::optional<plan::Optimizer> own =
      param.block < 0 ? plan::optimizerOf(plan.job)
                      : plan::optimizerOf(plan, plan.blocks[static_cast<size_t>(param.block)]);
  meta.isOfRest = plan::isOfRest(plan, param);
  if (own && meta.isOfRest)
    meta.optimizerOfRest = plan::optimizerInfo(*own).word;
  if (own && plan::needsMatrices(*own))
    meta.momentum = optimizer.muonMomentum;
  if (own)
    for (const plan::Scalar &scalar : plan::scalarsOf(*own, plan.job)) {
      if (scalar.key == plan::AttrKey::beta1)
        meta.beta1 = scalar.value;
      if (scalar.key == plan::AttrKey::beta2)
        meta.beta2 = scalar.value;
    }
  bool isConstant =
      plan.job.scheduler.weightDecayIncrStyle == plan::Job::WeightDecayStyle::Constant;
  meta.weightDecay =
      (isConstant ? lastWeightDecay(plan) : static_cast<double>(progress.weightDecay)) *
      param.wdMult;
  meta.step = progress.updatesOf(index);
  return meta;
}

checkpoint::FsdpPrecision fsdpPrecisionOf(const plan::Plan &plan) {
  bool isHalf = plan.job.model.bf16 || plan.job.model.fp16;
  return isHalf ? checkpoint::FsdpPrecision::Half : checkpoint::FsdpPrecision::Fp32;
}

std::string runConfigText(const plan::Plan &plan) {
  std::map<std::string, std::string> sections;
  for (const auto &[path, value] : settingsOf(plan.job)) {
    size_t dot = path.find('.');
    std::string section = path.substr(0, dot);
    std::string name = dot == std::string::npos ? "kind" : path.substr(dot + 1);
    sections[section] += fmt::format("  {}: {}\n", name, scalarText(value));
  }
  std::string text;
  for (const auto &[section, lines] : sections)
    text += fmt::format("{}:\n{}", section, lines);
  return text;
}

} // namespace shardc::save
