// Chooses the checkpoint, compares it with the plan, and writes rows to the cells of each rank.
#include "runtime/save/Loader.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "runtime/base/Float8Scales.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/save/ModelDifferences.h"
#include "runtime/save/PieceIo.h"

namespace shardc::save {
namespace {

using checkpoint::LoadDifferences;
using checkpoint::ParamPart;
using checkpoint::ParamRequest;
using checkpoint::RunState;
using checkpoint::SavedIteration;
using checkpoint::Shape;

/// Text such as `\n3 tensors are missing:`, followed by up to 20 names; empty without names.
std::string listed(const std::vector<std::string> &keys, std::string_view what) {
  return keys.empty() ? ""
                      : fmt::format("\n  {} {}:{}", keys.size(), what, checkpoint::listed(keys));
}

/// All differences between the requested state and the checkpoint.
std::string differences(const LoadDifferences &report) {
  return listed(report.missing, "tensors are missing") +
         listed(report.mismatched, "tensors have another shape") +
         listed(report.unexpected, "tensors are in the checkpoint but not needed");
}

bool isVocabulary(std::string_view name) {
  return checkpoint::isTable(name) || name == "output_layer.bias";
}

/// Upstream's name of the loader for a run's format, for messages.
std::string loaderName(const plan::Plan &plan) {
  return plan.job.checkpoint.ckptFormat == plan::Job::CkptFormat::FsdpDtensor
             ? "Megatron-FSDP"
             : plan.job.text(plan::JobField::checkpoint_ckptFormat);
}

bool isSameFolder(const std::string &a, const std::string &b) {
  namespace fs = std::filesystem;
  std::error_code error;
  return fs::equivalent(a, b, error) ||
         fs::path(a + "/").lexically_normal() == fs::path(b + "/").lexically_normal();
}

bool isMoment(ParamPart part) { return part != ParamPart::Weight; }

} // namespace

Loader::Loader(std::span<const plan::Plan> plans, StateLayout layout, ReportSink emit)
    : plans_(plans), plan_(&plans.front()), layout_(std::move(layout)), emit_(std::move(emit)),
      isFinetune_(plan_->job.checkpoint.finetune), loadsOptimizer_(plan_->job.checkpoint.loadOptim),
      lacksMoments_(plan_->params.size()) {}

int64_t Loader::batchesConsumed() const { return save::batchesConsumed(*plan_, progress_); }

std::string Loader::continuedFolder() const {
  return checkpoint_ && !isFinetune_ ? checkpoint_->folder() : "";
}

Result<std::map<std::string, std::string>> Loader::fingerprints() const {
  using Found = std::optional<std::pair<Shape, checkpoint::ReadBox>>;
  auto find = [&](const plan::Param &param, const std::string &name) -> Found {
    const checkpoint::ParamSource *source =
        base_ && takesFromBase(param) ? &base_->source() : checkpoint_.get();
    std::optional<Shape> shape =
        source != nullptr ? source->shapeOf(name, ParamPart::Weight) : std::nullopt;
    if (!shape)
      return std::nullopt;
    return std::pair(
        *shape, [source, name](const checkpoint::Box &box, checkpoint::Element type, void *to) {
          return source->read(name, ParamPart::Weight, box, type, to, /*padsRows=*/false);
        });
  };
  return checkpoint::fingerprintsOf(*plan_, find);
}

Result<std::vector<checkpoint::HfModelFile>> Loader::modelFiles() const {
  if (base_)
    return base_->modelFiles();
  if (!checkpoint_)
    return std::vector<checkpoint::HfModelFile>();
  return checkpoint_->modelFiles();
}

/// Returns null if the job loads nothing. If the newest checkpoint cannot be opened, the error
/// names an older one that can. Remarks about differences follow the line that says where the run
/// begins.
Result<std::unique_ptr<Loader>> Loader::open(std::span<const plan::Plan> plans, ReportSink emit) {
  const plan::Plan &plan = plans.front();
  if (plan.job.checkpoint.load.empty() && plan.job.checkpoint.pretrainedCheckpoint.empty())
    return std::unique_ptr<Loader>();
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
  ReportList remarks; // emitted after the step at which the run begins
  std::unique_ptr<Loader> loader(new Loader(plans, std::move(layout), remarks.sink()));
  ASSIGN_OR_RETURN(loader->base_,
                   BaseWeights::open(plan, plan.job.checkpoint.pretrainedCheckpoint, emit));
  ASSIGN_OR_RETURN(std::optional<Choice> chosen, loader->choose());
  if (!chosen && loader->base_) {
    RETURN_IF_ERROR(loader->beginWithBase());
    emit(makeReport(report::RunBegins,
                    fmt::format("starting at step 0 with new adapters for the weights of '{}'",
                                loader->base_->folder())));
    return loader;
  }
  if (!chosen) {
    emit(makeReport(report::RunBegins, fmt::format("starting at step 0: there is no checkpoint in "
                                                   "'{}'",
                                                   plan.job.checkpoint.load)));
    return loader;
  }
  if (Status status = loader->openChosen(chosen->folder, emit); !status.isOk())
    return loader->withOlder(std::move(status), chosen->folder);
  std::string begin = loader->isFinetune_
                          ? "starting at step 0 with the weights of"
                          : fmt::format("continuing after step {} from", loader->progress_.step);
  // The name of a copied checkpoint's folder may state another step, so the step is reported.
  emit(makeReport(report::RunBegins,
                  fmt::format("{} '{}', {}", begin, chosen->folder, chosen->why)));
  for (const Report &remark : remarks.take())
    emit(remark);
  loader->emit_ = std::move(emit);
  return loader;
}

Result<std::unique_ptr<Loader>> Loader::ofSource(std::span<const plan::Plan> plans, size_t phase,
                                                 Progress progress,
                                                 std::unique_ptr<StateSource> source) {
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plans[phase]));
  std::unique_ptr<Loader> loader(new Loader(plans, std::move(layout), {}));
  loader->plan_ = &plans[phase];
  loader->progress_ = std::move(progress);
  loader->source_ = std::move(source);
  const plan::Job::Checkpoint &options = plans[phase].job.checkpoint;
  ASSIGN_OR_RETURN(loader->base_,
                   BaseWeights::open(plans[phase], options.pretrainedCheckpoint, {}));
  if (!loader->base_ && plans[phase].job.peft.scheme)
    if (Result<std::string> folder = checkpoint::findCheckpoint(options.load); folder.isOk()) {
      ASSIGN_OR_RETURN(auto adapters, checkpoint::CheckpointReader::open(*folder));
      RETURN_IF_ERROR(loader->openNamedBase(adapters, {}));
    }
  bool needsBase = std::ranges::any_of(
      loader->plan_->params, [&](const auto &p) { return isKeptInBase(*loader->plan_, p); });
  loader->isWhole_ = !needsBase || loader->base_ != nullptr;
  return loader;
}

Status Loader::openChosen(const std::string &folder, const ReportSink &emit) {
  checkpoint::LoadChoice choice{
      plan_->job.text(plan::JobField::checkpoint_ckptFormat), isFinetune_ || !loadsOptimizer_,
      plan_->job.checkpoint.convertOnLoad, plan_->job.model.gatedLinearUnit};
  ASSIGN_OR_RETURN(checkpoint_, checkpoint::ParamSource::open(folder, choice, emit));
  if (checkpoint_->format() != choice.format)
    emit_(makeReport(report::ConvertedOnLoad, folder, checkpoint_->format(), choice.format));
  if (checkpoint_->checkpoint())
    RETURN_IF_ERROR(openNamedBase(checkpoint_->reader(), emit));
  return compare();
}

/// Opens the base that a checkpoint of adapters names, if the recipe names none. Without it,
/// adapters would change weights that nobody trained.
Status Loader::openNamedBase(const checkpoint::CheckpointReader &adapters, const ReportSink &emit) {
  if (base_ || !plan_->job.peft.scheme || !adapters.files().has(checkpoint::kBaseFile))
    return Status::ok();
  ASSIGN_OR_RETURN(checkpoint::BaseRecord record, checkpoint::readBaseRecord(adapters));
  auto opened = BaseWeights::open(*plan_, record.folder, emit);
  if (opened.isOk() && *opened) {
    base_ = std::move(*opened);
    return Status::ok();
  }
  return makeStatus(
      report::CheckpointNotFound,
      "the adapters in '{}' are for the weights of '{}'{}; 'checkpoint.pretrained_checkpoint' "
      "names their folder now",
      adapters.folder(), record.folder,
      opened.isOk() ? "" : fmt::format(", which cannot be opened: {}", opened.status().message()));
}

/// Adds an older checkpoint to the error. Only older ones are suggested, so that a user who follows
/// such advice repeatedly reaches an end.
Status Loader::withOlder(Status status, const std::string &folder) const {
  std::string_view id = status.report().id;
  const std::string &root = plan_->job.checkpoint.load;
  if ((id != report::CheckpointDamaged.info().id && id != report::CheckpointNotFound.info().id) ||
      root.empty())
    return status;
  Result<std::vector<SavedIteration>> all = checkpoint::listIterations(root);
  std::optional<int64_t> step =
      checkpoint::iterationOf(std::filesystem::path(folder).filename().string());
  for (size_t i = all.isOk() ? all->size() : 0; i-- > 0;) {
    const SavedIteration &saved = (*all)[i];
    if ((step && saved.iteration >= *step) ||
        !checkpoint::CheckpointReader::open(saved.folder).isOk())
      continue;
    std::string message = fmt::format(
        "{}; the newest intact one{} is '{}', which --set checkpoint.ckpt_step={} loads",
        status.message(), step ? " before it" : "", saved.folder, saved.iteration);
    return std::move(status).withMessage(std::move(message));
  }
  return status;
}

Result<Loader::Choice> Loader::chooseStep(const std::string &root, int64_t step) const {
  ASSIGN_OR_RETURN(std::vector<SavedIteration> all, checkpoint::listIterations(root));
  for (const SavedIteration &saved : all)
    if (saved.iteration == step)
      return Choice{saved.folder, "which checkpoint.ckpt_step names"};
  if (Result<UntrustedFolder> in = UntrustedFolder::open(root); in.isOk()) {
    const std::string name = fmt::format("iter_{:07}", step);
    RETURN_IF_ERROR(in->has(name) ? in->folder(name).status() : Status::ok());
    RETURN_IF_ERROR(checkpoint::refuseUnread(root + "/" + name));
  }
  return makeStatus(report::CheckpointNotFound,
                    "checkpoint.ckpt_step: there is no complete checkpoint of step {} in '{}'",
                    step, root);
}

/// The folder itself if it is a checkpoint; otherwise the newest checkpoint in it.
Result<std::optional<Loader::Choice>> Loader::chooseIn(const std::string &root,
                                                       std::string_view option) const {
  if (checkpoint::isCheckpoint(root))
    return std::optional(Choice{root, fmt::format("which {} names", option)});
  ASSIGN_OR_RETURN(std::optional<SavedIteration> saved, checkpoint::latestIteration(root));
  RETURN_IF_ERROR(checkpoint::refuseUnreadIn(root, saved));
  if (!saved)
    return std::optional<Choice>();
  std::error_code error;
  bool isTracked =
      std::filesystem::exists(fmt::format("{}/{}", root, checkpoint::kTrackerFile), error);
  return std::optional(
      Choice{saved->folder, isTracked ? fmt::format("which {} names", checkpoint::kTrackerFile)
                                      : "the newest complete one there"});
}

/// Prefers `checkpoint.load`: the step that ckpt_step names, otherwise the newest. If it has no
/// checkpoint, `pretrained_checkpoint` is taken, of which only the weights are loaded. With
/// adapters, the pretrained checkpoint is the base instead, which BaseWeights reads.
Result<std::optional<Loader::Choice>> Loader::choose() {
  std::string root = plan_->job.checkpoint.load;
  std::string pretrained = plan_->job.checkpoint.pretrainedCheckpoint;
  std::optional<Choice> chosen;
  if (int64_t step = plan_->job.checkpoint.ckptStep; !root.empty() && step >= 0) {
    ASSIGN_OR_RETURN(chosen, chooseStep(root, step));
  } else if (!root.empty()) {
    Result<std::optional<Choice>> newest = chooseIn(root, "checkpoint.load");
    if (!newest.isOk())
      return withOlder(newest.status(), "");
    chosen = std::move(*newest);
  }
  // 'finetune' is about the weights with which training begins, not about saves of this job.
  const bool isOwn =
      !pretrained.empty() && !root.empty() && isSameFolder(root, plan_->job.checkpoint.save);
  if (chosen && isOwn)
    isFinetune_ = false;
  if (!chosen && !pretrained.empty() && !base_) {
    constexpr std::string_view kOption = "checkpoint.pretrained_checkpoint";
    if (checkpoint::isHfModel(pretrained)) {
      chosen = Choice{pretrained, ""};
    } else {
      ASSIGN_OR_RETURN(chosen, chooseIn(pretrained, kOption));
    }
    if (!chosen)
      return makeStatus(report::CheckpointNotFound, "{}: there is no checkpoint in '{}'", kOption,
                        pretrained);
    chosen->why = root.empty() ? fmt::format("which {} names", kOption)
                               : fmt::format("the pretrained one, as '{}' has none", root);
    isFinetune_ = true;
  }
  if (!chosen && !root.empty() && plan_->job.checkpoint.exitOnMissingCheckpoint)
    return makeStatus(report::CheckpointNotFound,
                      "checkpoint.load: there is no checkpoint in '{}'; to begin at step 0 all the "
                      "same, set 'checkpoint.exit_on_missing_checkpoint = false'",
                      root);
  return chosen;
}

Status Loader::compare() {
  ASSIGN_OR_RETURN(RunState state, checkpoint_->runState());
  RETURN_IF_ERROR(choosePhase(state));
  if (!isFinetune_)
    RETURN_IF_ERROR(compareArguments(state));
  RETURN_IF_ERROR(compareModel(state));
  RETURN_IF_ERROR(compareTensors());
  RETURN_IF_ERROR(compareBase());
  RETURN_IF_ERROR(readExpertBias());
  if (const checkpoint::PlainValue *entry = checkpoint::findEntry(state.args, kKernelsArgument))
    if (const auto *kernels = entry->as<std::string>())
      progress_.kernels = *kernels;
  compareVocabulary(state);
  comparePadding(state);
  if (isFinetune_)
    return Status::ok();
  if (loadsOptimizer_) {
    compareSchedule(state);
    RETURN_IF_ERROR(compareOptimizer());
  }
  return readProgress(state);
}

/// Compares the model for which the weights were trained with this run's model, and finds the
/// weights that this run would drop.
Status Loader::compareModel(const RunState &state) const {
  std::vector<ModelDifference> found = modelDifferences(plan_->job, state);
  std::optional<Shape> table =
      checkpoint_->shapeOf("embedding.word_embeddings.weight", ParamPart::Weight);
  bool hasOutput = checkpoint_->shapeOf("output_layer.weight", ParamPart::Weight).has_value();
  addDroppedTensors(plan_->job, state, hasOutput, table && !table->empty() ? (*table)[0] : 0,
                    found);
  if (plan_->job.peft.scheme && checkpoint_->checkpoint())
    if (auto saved = checkpoint::readPeftSettings(checkpoint_->reader()); saved.isOk())
      addAdapterDifferences(plan_->job, *saved, found);
  return judgeDifferences(plan_->job, checkpoint_->folder(), found, emit_);
}

/// Accepts vocabularies that are padded to another number of rows, if all real rows exist in both.
void Loader::allowPadding(std::vector<ParamRequest> &requests) {
  int64_t real = plan_->job.model.vocabSize;
  for (ParamRequest &request : requests) {
    std::optional<Shape> saved = checkpoint_->shapeOf(request.name, request.part);
    if (!saved || *saved == request.shape || !isVocabulary(request.name) || request.isGated ||
        saved->size() != request.shape.size() || real == 0 || (*saved)[0] < real ||
        request.shape[0] < real ||
        !std::equal(std::next(saved->begin()), saved->end(), std::next(request.shape.begin())))
      continue;
    if (request.part == ParamPart::Weight)
      emit_(makeReport(report::PaddingRows, request.name, (*saved)[0], request.shape[0], real));
    request.shape = *saved;
  }
}

/// Finds parameters without moments. Adam's moments belong together: if one is missing, both are
/// initialised.
void Loader::findMissingMoments(const std::vector<ParamRequest> &requests) {
  std::map<std::string, size_t> paramOf;
  for (size_t p = 0; p < plan_->params.size(); ++p)
    for (int64_t i = 0; i < plan_->params[p].tensorCount(); ++i)
      paramOf[plan_->params[p].tensorName(i)] = p;
  for (const ParamRequest &request : requests)
    if (isMoment(request.part) && !checkpoint_->shapeOf(request.name, request.part))
      lacksMoments_[paramOf.at(request.name)] = true;
}

/// Compares the tensors that the run needs with those of the checkpoint. What counts as an error
/// depends on dist_ckpt_strictness, whose words are Megatron's. Frozen weights of the base are not
/// requested here.
Status Loader::compareTensors() {
  std::vector<ParamRequest> requests = layout_.requests();
  bool needsBase = false;
  for (const plan::Param &param : plan_->params)
    if (isKeptInBase(*plan_, param)) {
      needsBase = true;
      std::erase_if(requests, [&](const ParamRequest &request) {
        for (int64_t i = 0; i < param.tensorCount(); ++i)
          if (request.name == param.tensorName(i))
            return true;
        return false;
      });
    }
  // Without the optimizer, moments are neither needed nor unexpected.
  if (isFinetune_ || !loadsOptimizer_)
    std::erase_if(requests, [](const ParamRequest &r) { return isMoment(r.part); });
  else
    findMissingMoments(requests);
  std::erase_if(requests, [&](const ParamRequest &request) { // see readExpertBias
    return request.name.ends_with(".expert_bias") && base_ && base_->has(request.name) &&
           !checkpoint_->shapeOf(request.name, request.part);
  });
  allowPadding(requests);
  LoadDifferences report = checkpoint_->check(requests);
  if (isFinetune_ || !loadsOptimizer_)
    std::erase_if(report.unexpected,
                  [](const std::string &key) { return key.starts_with("optimizer."); });
  using Strictness = plan::Job::CkptStrictness;
  Strictness rule = plan_->job.checkpoint.distCkptStrictness;
  bool isStrict = plan_->job.checkpoint.strictFsdpDtensorLoad ||
                  rule == Strictness::RaiseUnexpected || rule == Strictness::RaiseAll;
  // Only `judged` decides; messages list all differences.
  LoadDifferences judged = report;
  if (isFinetune_ || rule == Strictness::IgnoreAll)
    judged.missingWeights.clear();
  const std::string &folder = checkpoint_->folder();
  if (Status status = loadStatus(judged, isStrict, /*rank=*/0, folder, loaderName(*plan_));
      !status.isOk()) {
    std::string reason = ": " + status.message().substr(0, status.message().find('\n'));
    return std::move(status)
        .withMessage(fmt::format("checkpoint '{}' does not fit this run{}{}", folder,
                                 judged.mismatched.empty() ? reason : "", differences(report)))
        .as(report::CheckpointMismatch.info());
  }
  if (rule == Strictness::RaiseAll && !report.unexpected.empty())
    return makeStatus(report::CheckpointMismatch,
                      "checkpoint '{}' contains more than this run needs, and "
                      "checkpoint.dist_ckpt_strictness is raise_all{}",
                      folder, differences(report));
  // The adapters of a folder belong together; a run without some of them has another model.
  if (needsBase && !report.unexpected.empty() && rule != Strictness::IgnoreAll)
    return makeStatus(report::CheckpointMismatch,
                      "checkpoint '{}' has adapters or trained modules that this run does not "
                      "have{}\nnote: name them in 'peft.targets' and 'peft.modules_to_save', or "
                      "leave them out with 'checkpoint.dist_ckpt_strictness = ignore_all'",
                      folder, differences(report));
  isWhole_ = report.missing.empty() && !isFinetune_ && loadsOptimizer_ && (!needsBase || base_);
  if (!report.missing.empty() || !report.unexpected.empty())
    emit_(makeReport(report::LoadedInPart, folder,
                     std::ranges::count(lacksMoments_, true) > 0
                         ? ", and missing moments start to count updates from zero"
                         : "",
                     differences(report)));
  return Status::ok();
}

/// Compares the base with the one that a checkpoint of adapters names.
Status Loader::compareBase() const {
  const checkpoint::CheckpointReader *adapters = checkpoint_->checkpoint();
  if (!base_ || adapters == nullptr || !adapters->files().has(checkpoint::kBaseFile))
    return Status::ok();
  ASSIGN_OR_RETURN(checkpoint::BaseRecord record, checkpoint::readBaseRecord(*adapters));
  return base_->compare(record, checkpoint_->folder());
}

/// Starts from the base only. Adapters and moments are those of a new run.
Status Loader::beginWithBase() {
  isFinetune_ = true;
  isWhole_ = false;
  return readExpertBias();
}

/// Whether the parameter starts with the base's values. A parameter that is trained in full does so
/// if no checkpoint contains it.
bool Loader::takesFromBase(const plan::Param &param) const {
  return isKeptInBase(*plan_, param) || (isInBase(param) && base_ && !checkpoint_ && !source_);
}

namespace {

/// Writes the counters of the run to the cell from which kernels read them. A checkpoint without a
/// loss scaler starts with the scaler of a new run.
Status writeStep(exec::Executable &executable, size_t rank, const Progress &progress) {
  const plan::Plan &plan = executable.plan();
  const plan::Role &role = executable.roleOf(rank);
  uint32_t index = plan::findCell(role, plan::CellKind::Step);
  if (index == plan::kNone)
    return Status::ok();
  StepState state{};
  state.step = progress.step;
  state.applied = progress.applied;
  state.samples = progress.scheduledSamples;
  LossScaler first{static_cast<float>(plan::firstLossScale(plan.job)), 0,
                   static_cast<int32_t>(plan.job.optimizer.hysteresis)};
  LossScaler scaler = progress.lossScaler.value_or(first);
  state.lossScale = scaler.scale;
  state.growthTracker = scaler.growthTracker;
  state.hysteresisTracker = scaler.hysteresisTracker;
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(role.cells[index].place, sizeof state, "@step"));
  return executable.write(rank, address, sizeof state, &state);
}

} // namespace

Status restoreStep(exec::Executable &executable, const Progress &progress) {
  for (size_t rank = 0; rank < executable.rankCount(); ++rank)
    RETURN_IF_ERROR(writeStep(executable, rank, progress));
  return Status::ok();
}

Status Loader::restore(exec::Executable &executable) const {
  Status status = restoreAll(executable);
  if (source_)
    source_->end();
  bool isDone = status.isOk() || !checkpoint_;
  return isDone ? status : withOlder(std::move(status), checkpoint_->folder());
}

Status Loader::restoreAll(exec::Executable &executable) const {
  RETURN_IF_ERROR(executable.backend().synchronize());
  std::vector<uint8_t> buffer;
  for (size_t rank = 0; rank < executable.rankCount(); ++rank) {
    if (isWhole_) // otherwise the start of the run has initialised them
      RETURN_IF_ERROR(clearCells(executable, rank));
    ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, layout_.pieces(executable.worldRank(rank)));
    for (const StatePiece &piece : pieces)
      RETURN_IF_ERROR(restorePiece(executable, rank, piece, buffer));
    RETURN_IF_ERROR(restoreScales(executable, rank));
    uint32_t role = exec::roleOf(*plan_, executable.worldRank(rank));
    RETURN_IF_ERROR(
        restoreCell(executable, rank, expertBiasOf(*plan_, role), progress_.expertBias));
    if (isFinetune_)
      continue;
    RETURN_IF_ERROR(writeStep(executable, rank, progress_));
    RETURN_IF_ERROR(
        restoreCell(executable, rank, amaxHistoryOf(*plan_, role), progress_.amaxHistory));
  }
  return executable.backend().synchronize();
}

/// Clears cells including padding. Padding belongs to no parameter, but collectives transfer it, so
/// it must start as in a new run.
Status Loader::clearCells(exec::Executable &executable, size_t rank) const {
  uint32_t role = exec::roleOf(*plan_, executable.worldRank(rank));
  for (uint32_t index : layout_.cells(role)) {
    const plan::Cell &cell = plan_->roles[role].cells[index];
    ASSIGN_OR_RETURN(uint8_t * address,
                     executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
    RETURN_IF_ERROR(
        executable.computeStream(rank).fill(address, 0, cell.type.bytes(), "clear state"));
  }
  return executable.backend().synchronize();
}

Status Loader::restorePiece(exec::Executable &executable, size_t rank, const StatePiece &piece,
                            std::vector<uint8_t> &buffer) const {
  ASSIGN_OR_RETURN(bool isThere, read(piece, buffer));
  if (!isThere)
    return Status::ok();
  return writePiece(executable, rank, layout_, piece, buffer);
}

namespace {

/// Quantises numbers to 8 bits with this multiplier. Returns the end of what it has written.
uint8_t *writeFloat8(std::span<const float> numbers, float multiplier, uint8_t *to) {
  for (float number : numbers)
    *to++ = toBits(number * multiplier, DType::F8E4M3);
  return to;
}

/// Writes a record of numbers in 4 bits; `nested` null: with a scale in fp32. Returns where it
/// ends.
uint8_t *writeRecord(const float *numbers, const NestedScales *nested, int64_t number,
                     uint8_t *to) {
  if (nested == nullptr) {
    *reinterpret_cast<Nf4Block *>(to) = toNf4(numbers);
    return to + sizeof(Nf4Block);
  }
  *reinterpret_cast<Nf4Record *>(to) = nested->record(numbers, static_cast<size_t>(number));
  return to + sizeof(Nf4Record);
}

} // namespace

/// Reads a piece from the base. For types of 4 and 8 bits, quantises fp32 weights, some rows at a
/// time.
Status Loader::readFromBase(const StatePiece &piece, uint8_t *bytes) const {
  const std::string name = layout_.nameOf(piece);
  DType type = layout_.typeOf(piece);
  const bool isFloat8 = type == DType::F8E4M3;
  if (!isRecord(type) && !isFloat8)
    return base_->read(name, piece.box, checkpoint::elementOf(type), bytes);
  const plan::Param &param = plan_->params[piece.param];
  const int64_t inRow = param.tensorType().shape[1] / numbersIn(type); // records
  float multiplier = 1;
  const NestedScales *nested = nullptr;
  if (isFloat8) {
    ASSIGN_OR_RETURN(float amax, base_->amax(param, piece.number));
    multiplier = multiplierOf(amax, type);
  } else if (type == DType::NF4x512) {
    ASSIGN_OR_RETURN(nested, nestedScales(param));
  }
  const int64_t columns = piece.box.shape.back();
  return base_->readInPieces(
      name, piece.box, [&](const checkpoint::Box &rows, std::span<const float> numbers) {
        if (isFloat8) {
          bytes = writeFloat8(numbers, multiplier, bytes);
          return Status::ok();
        }
        for (int64_t row = 0; row < rows.shape[0]; ++row)
          for (int64_t column = 0; column < columns; column += numbersIn(type)) {
            const float *from = &numbers[static_cast<size_t>(row * columns + column)];
            const int64_t number =
                (rows.offset[0] + row) * inRow + (rows.offset[1] + column) / numbersIn(type);
            bytes = writeRecord(from, nested, number, bytes);
          }
        return Status::ok();
      });
}

/// Writes the scales of base weights in 8 bits. A rank that gathers a block needs those of all its
/// weights, and of stacks those of its own experts.
Status Loader::restoreScales(exec::Executable &executable, size_t rank) const {
  const int64_t worldRank = executable.worldRank(rank);
  const plan::Role &role = plan_->roles[exec::roleOf(*plan_, worldRank)];
  const uint32_t cell = plan::findCell(role, plan::CellKind::WeightScales);
  if (!base_ || cell == plan::kNone)
    return Status::ok();
  const exec::GroupIndices indices(*plan_, worldRank);
  std::vector<float> scales(static_cast<size_t>(role.cells[cell].type.numel()));
  for (size_t p = 0; p < plan_->params.size(); ++p) {
    const plan::Param &param = plan_->params[p];
    if (!plan::isKeptIn8Bits(param) || !isKeptInBase(*plan_, param) ||
        plan::findCell(role, plan::CellKind::Weight, param.block) == plan::kNone)
      continue;
    const int64_t count = param.isStacked() ? param.type.shape[0] : 1;
    int64_t first = 0;
    for (const plan::Split &split : param.splits)
      if (param.isStacked() && split.dim == 0)
        first = indices.of(split.group) * count;
    for (int64_t number = first; number < first + count; ++number) {
      ASSIGN_OR_RETURN(float amax, base_->amax(param, number));
      std::fill_n(&scales[static_cast<size_t>((plan::numberOfScale(*plan_, p) + number) *
                                              plan::kScaleStride)],
                  plan::kScaleStride, 1.0f / multiplierOf(amax, DType::F8E4M3));
    }
  }
  return restoreCell(executable, rank, &role.cells[cell], std::move(scales));
}

Result<const NestedScales *> Loader::nestedScales(const plan::Param &param) const {
  if (nested_.first != &param) {
    ASSIGN_OR_RETURN(nested_.second, base_->nestedScales(param));
    nested_.first = &param;
  }
  return &*nested_.second;
}

namespace {

/// The norm of a row of these numbers in the compute type.
float normOf(std::span<const float> numbers, DType compute) {
  double squares = 0;
  for (float number : numbers) {
    auto rounded = static_cast<double>(roundedTo(compute, number));
    squares += rounded * rounded;
  }
  return static_cast<float>(std::sqrt(squares));
}

} // namespace

/// Magnitudes of new adapters are the norms of rows of their weights, as products take these.
Status Loader::readNorms(const StatePiece &piece, const std::string &weight, uint8_t *bytes) const {
  auto param = std::ranges::find(plan_->params, weight, &plan::Param::name);
  SHARDC_CHECK(param != plan_->params.end(), "no weight '{}'", weight);
  const DType compute = plan_->params[piece.param].type.dtype;
  const int64_t columns = param->tensorType().shape[1], rows = piece.box.shape[0];
  std::vector<float> norms;
  RETURN_IF_ERROR(
      base_->readInPieces(weight, {{piece.box.offset[0], 0}, {rows, columns}},
                          [&](const checkpoint::Box &read, std::span<float> numbers) -> Status {
                            if (param->type.dtype == DType::NF4x64)
                              for (size_t at = 0; at < numbers.size(); at += Nf4Block::kNumbers)
                                fromNf4(toNf4(&numbers[at]), &numbers[at]);
                            if (param->type.dtype == DType::NF4x512) {
                              ASSIGN_OR_RETURN(const NestedScales *nested, nestedScales(*param));
                              nested->round(numbers.data(), read.offset[0], read.shape[0]);
                            }
                            for (auto row = numbers.begin(); row != numbers.end(); row += columns)
                              norms.push_back(normOf({row, row + columns}, compute));
                            return Status::ok();
                          }));
  checkpoint::convertElements(
      checkpoint::Element::F32, reinterpret_cast<const uint8_t *>(norms.data()),
      checkpoint::elementOf(layout_.typeOf(piece)), bytes, piece.box.shape[0]);
  return Status::ok();
}

/// Reads one piece into `bytes`. False if no source has it, so that the piece keeps its initial
/// value. Sources are, in this order: base weights, norms of base weights for DoRA's magnitudes,
/// the other ranks of a job that changes its size, the checkpoint.
Result<bool> Loader::read(const StatePiece &piece, std::vector<uint8_t> &bytes) const {
  if (takesFromBase(plan_->params[piece.param])) {
    if (!base_ || isMoment(piece.part))
      return false;
    bytes.resize(static_cast<size_t>(StateLayout::bytesOf(piece)));
    RETURN_IF_ERROR(readFromBase(piece, bytes.data()));
    return true;
  }
  if (!checkpoint_ && !source_) {
    // A new run has no other source. The magnitudes of DoRA begin as the norms of the base's rows.
    std::optional<std::string> weight = plan::weightOfMagnitude(layout_.nameOf(piece));
    if (!base_ || !weight || isMoment(piece.part))
      return false;
    bytes.resize(static_cast<size_t>(StateLayout::bytesOf(piece)));
    RETURN_IF_ERROR(readNorms(piece, *weight, bytes.data()));
    return true;
  }
  if (source_) {
    bytes.resize(static_cast<size_t>(StateLayout::bytesOf(piece)));
    RETURN_IF_ERROR(source_->read(piece, bytes.data()));
    return true;
  }
  std::string name = layout_.nameOf(piece);
  std::optional<Shape> saved = checkpoint_->shapeOf(name, piece.part);
  bool isLoaded =
      !isMoment(piece.part) || (!isFinetune_ && loadsOptimizer_ && !lacksMoments_[piece.param]);
  if (!saved || !isLoaded)
    return false;
  bool isPadded = layout_.shapeOf(piece.param)[0] > (*saved)[0];
  bytes.resize(static_cast<size_t>(StateLayout::bytesOf(piece)));
  RETURN_IF_ERROR(checkpoint_->read(name, piece.part, piece.box,
                                    checkpoint::elementOf(layout_.typeOf(piece)), bytes.data(),
                                    isPadded));
  return true;
}

/// Writes a value of the checkpoint to a cell. If `content` is empty because the checkpoint lacks
/// the value, writes zeros, as in a new run.
Status Loader::restoreCell(exec::Executable &executable, size_t rank, const plan::Cell *cell,
                           std::vector<float> content) const {
  if (cell == nullptr)
    return Status::ok();
  content.resize(static_cast<size_t>(cell->type.numel()));
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cell->place, cell->type.bytes(), cell->name));
  return executable.write(rank, address, cell->type.bytes(), content.data());
}

} // namespace shardc::save
