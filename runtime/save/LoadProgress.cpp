// Compares a checkpoint's record of its run with this run: refuses some differences, adopts some
// values, and ignores others with a remark.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/Reports.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/save/Loader.h"

namespace shardc::save {

using checkpoint::findEntry;
using checkpoint::PlainTuple;
using checkpoint::PlainValue;
using checkpoint::RunState;

namespace {

constexpr const char *kScheduled = "num_steps"; ///< samples that the schedule has counted
constexpr const char *kConsumed = "consumed_train_samples";

bool isSame(const PlainValue &a, const PlainValue &b) {
  return textOf(a) == textOf(b) || (a.number() && b.number() && *a.number() == *b.number());
}

int64_t batchOf(const plan::Plan &plan) {
  return std::max<int64_t>(plan::batchSizesOf(plan.job, /*isEval=*/false).global, 1);
}

bool countsSamples(const plan::Plan &plan) { return plan.job.derived.stepSamples > 0; }

/// A value of the schedule: its names in messages, and how this run treats it.
struct ScheduleWords {
  std::string_view name, what, does;
  bool isLength = false; ///< whether it is counted in samples
};

constexpr ScheduleWords kScheduleWords[] = {
    {"max_lr", "the highest learning rate", "is now"},
    {"min_lr", "the lowest learning rate", "is now"},
    {"lr_warmup_steps", "the warmup", "now ends at", true},
    {"lr_decay_steps", "the schedule", "now ends at", true},
    {"lr_decay_style", "the schedule's form", "is now"},
    {"start_wd", "the first weight decay", "is now"},
    {"end_wd", "the last weight decay", "is now"},
    {"wd_incr_steps", "the schedule of weight decay", "now ends at", true},
    {"wd_incr_style", "the form of weight decay's schedule", "is now"},
};

/// A length in samples as text; in steps if it is a multiple of the batch size.
std::string lengthText(const PlainValue &value, std::optional<int64_t> batch) {
  std::optional<int64_t> samples = value.wholeNumber();
  if (!samples || !batch || *samples % *batch != 0)
    return "sample " + textOf(value);
  return fmt::format("step {}", *samples / *batch);
}

/// The global batch size of the run that saved; nothing if the checkpoint does not have it.
std::optional<int64_t> savedBatch(const RunState &state) {
  const PlainValue *entry = findEntry(state.args, "global_batch_size");
  std::optional<int64_t> batch = entry != nullptr ? entry->wholeNumber() : std::nullopt;
  return batch && *batch > 0 ? batch : std::nullopt;
}

} // namespace

/// Compares settings that affect the model's computation but not the shapes of its tensors.
Status Loader::compareArguments(const RunState &state) const {
  const plan::Job::Model &model = plan_->job.model;
  for (auto [name, ours] : {std::pair("num_layers", model.numLayers),
                            {"hidden_size", model.hiddenSize},
                            {"num_attention_heads", model.numAttentionHeads}}) {
    const PlainValue *saved = findEntry(state.args, name);
    if (saved && saved->as<int64_t>() && *saved->as<int64_t>() != ours)
      return makeStatus(
          report::CheckpointMismatch,
          "{} value from checkpoint ({}) is not equal to the input argument value ({}).", name,
          *saved->as<int64_t>(), ours);
  }
  return Status::ok();
}

void Loader::compareSchedule(const RunState &state) {
  checkpoint::PlainEntries schedule = runStateOf(*plan_, progress_).scheduler;
  const PlainValue *form = findEntry(schedule, "wd_incr_style");
  bool isDecayConstant = form != nullptr && textOf(*form) == textOf(PlainValue("constant"));
  std::optional<int64_t> ourBatch, batch;
  if (!countsSamples(*plan_)) {
    ourBatch = batchOf(*plan_);
    batch = savedBatch(state);
  }
  for (const ScheduleWords &words : kScheduleWords) {
    const PlainValue *saved = findEntry(state.scheduler, words.name);
    const PlainValue *ours = findEntry(schedule, words.name);
    bool isIdle = words.name == "wd_incr_steps" && isDecayConstant; // then it has no effect
    if (!saved || !ours || isSame(*saved, *ours) || isIdle)
      continue;
    std::string now = words.isLength ? lengthText(*ours, ourBatch) : textOf(*ours);
    std::string before = words.isLength ? lengthText(*saved, batch) : textOf(*saved);
    if (words.isLength && now.starts_with("step") == before.starts_with("step"))
      before = before.substr(before.find(' ') + 1); // the unit is printed once, before both numbers
    emit_(makeReport(report::ScheduleChanged, words.what, fmt::format("{} {}", words.does, now),
                     before));
  }
}

/// Compares optimizer settings. Upstream continues with those of the checkpoint.
Status Loader::compareOptimizer() {
  if (plan_->params.empty() || plan_->job.optimizer.optimizer != plan::Job::OptimizerKind::Adam)
    return Status::ok();
  checkpoint::GroupMeta ours = groupMetaOf(*plan_, 0, progress_);
  for (const auto &[field, value] :
       {std::pair("betas", PlainValue(PlainTuple{{ours.beta1, ours.beta2}})),
        std::pair("eps", PlainValue(ours.eps))}) {
    ASSIGN_OR_RETURN(std::optional<PlainValue> saved,
                     checkpoint_->setting(plan_->params[0].tensorName(0), field));
    if (saved && !isSame(*saved, value))
      emit_(makeReport(report::OptimizerChanged, field, textOf(*saved), textOf(value)));
  }
  return Status::ok();
}

/// Compares vocabulary sizes. Because of padding, shapes may not show a change.
void Loader::compareVocabulary(const RunState &state) {
  const PlainValue *entry = findEntry(state.args, "vocab_size");
  const int64_t *saved = entry != nullptr ? entry->as<int64_t>() : nullptr;
  int64_t ours = plan_->job.model.vocabSize;
  if (saved == nullptr || *saved <= 0 || *saved == ours)
    return;
  emit_(makeReport(report::VocabularyChanged, *saved, ours, std::min(*saved, ours),
                   *saved < ours ? "start with the values of its padding"
                                 : "are padding in this run"));
}

/// Compares whether the softmax includes the padding rows of the vocabulary now and when the
/// weights were trained. Only our own runs record this; Megatron always includes them.
void Loader::comparePadding(const RunState &state) {
  int64_t vocab = plan_->job.model.vocabSize;
  int64_t padded = plan_->job.has(plan::JobField::derived_paddedVocabSize)
                       ? plan_->job.derived.paddedVocabSize
                       : vocab;
  if (padded == vocab || findEntry(state.args, "padded_vocab_size") == nullptr)
    return;
  constexpr const char *kOption = "mask_padded_vocab";
  const PlainValue *saved = findEntry(state.args, kOption);
  const bool *masked = saved != nullptr ? saved->as<bool>() : nullptr;
  // Runs of shardc without the record always masked the padding. Megatron has no argument with this
  // name, so it identifies our runs.
  bool isOurs = findEntry(state.args, "should_pad_vocab") != nullptr;
  bool before = masked != nullptr ? *masked : isOurs;
  bool now = plan_->job.model.maskPaddedVocab;
  if (before != now)
    emit_(makeReport(report::PaddingMaskChanged, padded - vocab, before ? "excluded from" : "in",
                     now ? "excluded from" : "in", before));
}

/// The consumed samples of a checkpoint. If the checkpoint does not have them, they are computed
/// from the job's steps.
int64_t Loader::consumedSamples(const RunState &state) const {
  bool isKnown = findEntry(state.args, kConsumed) != nullptr;
  return isKnown ? state.consumedTrainSamples : plan::samplesOfSteps(plans_, state.iteration);
}

/// If the batch size grows, chooses the plan for the next steps.
Status Loader::choosePhase(const RunState &state) {
  if (isFinetune_ || plans_.size() == 1)
    return Status::ok();
  plan_ = &plans_[plan::phaseAfter(plans_, consumedSamples(state))];
  ASSIGN_OR_RETURN(layout_, StateLayout::create(*plan_));
  return Status::ok();
}

/// The samples of the updates that the schedule has counted. If the checkpoint does not have them,
/// all samples that were trained on.
int64_t Loader::scheduledSamples(const RunState &state) {
  int64_t trained = progress_.consumedTrainSamples - progress_.skippedTrainSamples;
  const PlainValue *entry = findEntry(state.scheduler, kScheduled);
  if (entry == nullptr)
    return trained;
  std::optional<int64_t> samples = entry->wholeNumber();
  if (samples && *samples >= 0)
    return *samples;
  emit_(makeReport(report::ScheduleUnknown, kScheduled, textOf(*entry)));
  return trained;
}

/// The number of updates that the schedule has counted; upstream counts their samples. Nothing if
/// the checkpoint does not have it.
std::optional<int64_t> Loader::scheduledUpdates(const RunState &state) {
  const PlainValue *entry = findEntry(state.scheduler, kScheduled);
  if (entry == nullptr)
    return std::nullopt;
  std::optional<int64_t> samples = entry->wholeNumber();
  if (!samples || *samples < 0) {
    emit_(makeReport(report::ScheduleUnknown, kScheduled, textOf(*entry)));
    return std::nullopt;
  }
  int64_t ours = batchOf(*plan_), batch = savedBatch(state).value_or(ours);
  int64_t updates = *samples / batch;
  if (updates != state.iteration || *samples % batch != 0)
    emit_(makeReport(report::ScheduleContinues, updates, kScheduled, *samples, batch,
                     state.iteration));
  if (batch != ours)
    emit_(makeReport(report::BatchChanged, batch, ours));
  return updates;
}

/// Reads update counts. The schedule has one count for all parameters. The moments of each
/// parameter have their own, since they may have begun later.
Status Loader::readUpdates(const RunState &state) {
  std::vector<std::optional<int64_t>> counts(plan_->params.size());
  std::optional<int64_t> known;
  for (size_t p = 0; p < counts.size(); ++p) {
    if (lacksMoments_[p]) {
      counts[p] = 0;
      continue;
    }
    ASSIGN_OR_RETURN(counts[p], checkpoint_->updates(plan_->params[p].tensorName(0)));
    known = known ? known : counts[p];
  }
  std::optional<int64_t> scheduled;
  if (countsSamples(*plan_)) // the number of updates does not follow from samples
    progress_.scheduledSamples = scheduledSamples(state);
  else
    scheduled = scheduledUpdates(state);
  progress_.applied = scheduled ? *scheduled : known.value_or(state.iteration);
  std::vector<int64_t> offsets;
  for (const std::optional<int64_t> &count : counts)
    offsets.push_back(count.value_or(progress_.applied) - progress_.applied);
  if (std::ranges::any_of(offsets, [](int64_t offset) { return offset != 0; }))
    progress_.countOffsets = std::move(offsets);
  return Status::ok();
}

void Loader::readLossScale(const RunState &state) {
  if (!loadsOptimizer_ || plan::scalingOf(plan_->job) != plan::Scaling::Dynamic)
    return;
  progress_.lossScaler = lossScalerOf(state);
  if (!progress_.lossScaler)
    emit_(makeReport(report::LossScaleUnknown, plan::firstLossScale(plan_->job)));
}

/// Reads the amax history if it covers the same tensors and equally many steps.
Status Loader::readAmaxHistory() {
  const plan::Cell *cell = amaxHistoryOf(*plan_);
  if (cell == nullptr || !loadsOptimizer_)
    return Status::ok();
  const plan::Type &type = cell->type;
  checkpoint::Box whole;
  whole.shape.assign(type.shape.begin(), type.shape.begin() + type.rank);
  whole.offset.resize(whole.shape.size());
  const checkpoint::TensorMeta *saved = checkpoint_->reader().findTensor(kAmaxHistory);
  if (saved == nullptr || saved->shape != whole.shape) {
    emit_(makeReport(report::AmaxHistoryUnknown, type.shape[0], type.shape[1]));
    return Status::ok();
  }
  progress_.amaxHistory.resize(static_cast<size_t>(type.numel()));
  return checkpoint_->reader().read(kAmaxHistory, whole, checkpoint::Element::F32,
                                     progress_.amaxHistory.data());
}

/// Reads the expert bias, which is loaded with the weights. A layer without a bias in the
/// checkpoint starts with zeros, as in a new run.
Status Loader::readExpertBias() {
  std::optional<int64_t> holder = rankWithExpertBias(*plan_);
  if (!holder)
    return Status::ok();
  const plan::Cell *cell = expertBiasOf(*plan_, exec::roleOf(*plan_, *holder));
  progress_.expertBias.assign(static_cast<size_t>(cell->type.numel()), 0.0f);
  float *row = progress_.expertBias.data();
  for (const ExpertBuffer &buffer : expertBuffersOf(*plan_)) {
    using checkpoint::ParamPart;
    if (checkpoint_ && checkpoint_->shapeOf(buffer.name, ParamPart::Weight))
      RETURN_IF_ERROR(checkpoint_->read(buffer.name, ParamPart::Weight, {{0}, {buffer.experts}},
                                        checkpoint::Element::F32, row, /*padsRows=*/false));
    else if (base_ && base_->has(buffer.name)) // imported adapters lack it
      RETURN_IF_ERROR(
          base_->read(buffer.name, {{0}, {buffer.experts}}, checkpoint::Element::F32, row));
    row += cell->type.shape[1];
  }
  return Status::ok();
}

/// Takes the counters of the checkpoint. The number of consumed samples must be at a boundary of
/// steps, since the data of a run are addressed by step; the message says what helps.
Status Loader::readProgress(const RunState &state) {
  int64_t batch = batchOf(*plan_);
  progress_.step = state.iteration;
  progress_.consumedTrainSamples = consumedSamples(state);
  progress_.skippedTrainSamples = state.skippedTrainSamples;
  progress_.consumedValidSamples = state.consumedValidSamples;
  progress_.floatingPointOperations = state.floatingPointOperations;
  if (progress_.step < 0)
    return makeStatus(report::CheckpointMismatch, "checkpoint '{}' contains iteration {}",
                      checkpoint_->folder(), progress_.step);
  if (findEntry(state.args, kConsumed) == nullptr)
    emit_(makeReport(report::SamplesAssumed, progress_.consumedTrainSamples));
  if (loadsOptimizer_)
    RETURN_IF_ERROR(readUpdates(state));
  readLossScale(state);
  RETURN_IF_ERROR(readAmaxHistory());
  int64_t samplesBefore = plan_->job.derived.samplesBefore;
  if ((progress_.consumedTrainSamples - samplesBefore) % batch == 0)
    return Status::ok();
  if (countsSamples(*plan_))
    return makeStatus(report::CheckpointMismatch,
                      "checkpoint '{}' has consumed {} samples; by train.rampup_batch_size steps "
                      "take {} samples from {} on, which do not end there\nnote: "
                      "'checkpoint.finetune = true' loads only the weights and starts the data "
                      "from the beginning",
                      checkpoint_->folder(), progress_.consumedTrainSamples, batch, samplesBefore);
  std::optional<int64_t> before = savedBatch(state);
  return makeStatus(report::CheckpointMismatch,
                    "checkpoint '{}' has consumed {} samples, which is not a multiple of "
                    "train.global_batch_size, {}\nnote: {}'checkpoint.finetune = true' loads only "
                    "the weights and starts the data from the beginning",
                    checkpoint_->folder(), progress_.consumedTrainSamples, batch,
                    before ? fmt::format("its run used {0}: 'train.global_batch_size = {0}' "
                                         "continues where it stopped; ",
                                         *before)
                           : "");
}

} // namespace shardc::save
