// Decides at each step whether to save, and drives either the save in the foreground or SaveThread.
#include "runtime/save/Saver.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <unistd.h>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/plan/Summary.h"
#include "runtime/save/PieceIo.h"

namespace shardc::save {
namespace {

using checkpoint::SaveTarget;

/// Creates the folder for checkpoints, and checks that files can be created in it.
Status makeRoot(const std::string &root) {
  if (Status status = checkpoint::makeFolders(root); !status.isOk())
    return std::move(status).as(report::SaveFolderRefused.info());
  if (::access(root.c_str(), W_OK | X_OK) != 0)
    return makeStatus(report::SaveFolderRefused, "'{}' cannot be written into: {}", root,
                      std::strerror(errno));
  return Status::ok();
}

/// The number of newest checkpoints to keep; -1: all.
int64_t keptOf(const plan::Plan &plan) {
  int64_t recent = plan.job.checkpoint.mostRecentK;
  return recent < 0 && plan.job.checkpoint.saveRetainInterval > 0 ? 1 : recent;
}

} // namespace

/// Checks options that contradict each other or that no format supports. Called before anything is
/// allocated, so that a run does not fail at its first save.
Status checkCheckpointOptions(const plan::Plan &plan) {
  const char *used = nullptr;
  for (auto [path, folder] :
       {std::pair("checkpoint.save", &plan.job.checkpoint.save),
        {"checkpoint.load", &plan.job.checkpoint.load},
        {"checkpoint.pretrained_checkpoint", &plan.job.checkpoint.pretrainedCheckpoint}})
    if (!folder->empty() && !used)
      used = path;
  if (!used)
    return Status::ok();
  if (Status written = checkFormat(plan); !written.isOk())
    return std::move(written).withContext(fmt::format("'{}' is set", used));
  bool isFsdpFormat = plan.job.checkpoint.ckptFormat == plan::Job::CkptFormat::FsdpDtensor;
  bool isFsdp = plan.job.ddp.useMegatronFsdp;
  if (isFsdpFormat && !isFsdp)
    return makeStatus(report::FsdpDtensorNeedsFsdp);
  if (!isFsdpFormat && isFsdp)
    return makeStatus(report::FsdpDtensorOnly);
  const std::string &source = plan.job.checkpoint.hfSourcePath;
  if (std::error_code error; plan.job.checkpoint.alsoSaveHfCheckpoint && !source.empty() &&
                             !std::filesystem::is_directory(source, error))
    return makeStatus(
        report::PlanCannotRun,
        "'checkpoint.hf_source_path' is '{}', which is not a folder of a model; a run "
        "downloads none",
        source);
  return Status(StateLayout::create(plan).status()).withContext("checkpoint");
}

Saver::Saver(const plan::Plan &plan, StateLayout layout, ReportSink emit, hal::Peers *peers)
    : plan_(&plan), layout_(std::move(layout)), emit_(std::move(emit)), peers_(peers),
      root_(plan.job.checkpoint.save), interval_(plan.job.checkpoint.saveInterval),
      mostRecent_(keptOf(plan)), stopsOnError_(plan.job.checkpoint.stopOnSaveError) {}

Saver::~Saver() = default;

Result<std::unique_ptr<Saver>> Saver::create(const plan::Plan &plan, ReportSink emit,
                                             hal::Peers *peers,
                                             const checkpoint::Observers &observers) {
  if (plan.job.checkpoint.save.empty())
    return std::unique_ptr<Saver>();
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
  std::unique_ptr<Saver> saver(new Saver(plan, std::move(layout), std::move(emit), peers));
  ASSIGN_OR_RETURN(saver->job_, SaveJob::of(plan, saver->layout_));
  saver->job_.writers = &saver->writers_;
  saver->job_.observers = observers;
  saver->job_.attempt = peers ? peers->attempt() : 0;
  ASSIGN_OR_RETURN(saver->snapshot_, snapshotPieces(plan, saver->layout_));
  RETURN_IF_ERROR(saver->agree("preparing the folder of checkpoints",
                               saver->isFirst() ? saver->prepareRoot() : Status::ok()));
  return saver;
}

Status Saver::turnTo(const plan::Plan &plan, const Progress &begin) {
  thread_.reset(); // it refers to the executable
  plan_ = &plan;
  begin_ = begin;
  ASSIGN_OR_RETURN(layout_, StateLayout::create(plan));
  checkpoint::Observers observers = job_.observers;
  std::vector<checkpoint::HfModelFile> files = std::move(job_.modelFiles);
  std::string record = std::move(job_.baseRecord);
  ASSIGN_OR_RETURN(job_, SaveJob::of(plan, layout_));
  job_.modelFiles = std::move(files);
  job_.baseRecord = std::move(record);
  job_.writers = &writers_;
  job_.observers = std::move(observers);
  job_.attempt = peers_ ? peers_->attempt() : 0;
  ASSIGN_OR_RETURN(snapshot_, snapshotPieces(plan, layout_));
  return Status::ok();
}

/// Makes and locks the folder, then finishes or undoes what an earlier run left unfinished in it.
Status Saver::prepareRoot() {
  if (Status status = checkpoint::checkSaveRoot(root_); !status.isOk())
    return std::move(status).withContext("checkpoint.save");
  if (Status status = makeRoot(root_); !status.isOk())
    return std::move(status).withContext("checkpoint.save");
  Result<checkpoint::FolderLock> lock = checkpoint::FolderLock::take(root_, emit_);
  if (!lock.isOk())
    return Status(lock.status()).withContext("checkpoint.save");
  lock_ = std::move(*lock);
  return checkpoint::recoverInterrupted(root_, emit_, job_.observers);
}

Status Saver::checkOverwrites(int64_t step, const std::string &continued) const {
  namespace fs = std::filesystem;
  if (plan_->job.checkpoint.overwrite || !isFirst())
    return Status::ok();
  std::error_code error;
  fs::path folder = fs::path(continued).lexically_normal();
  if (!continued.empty() && (fs::equivalent(folder.parent_path(), root_, error) ||
                             fs::equivalent(folder / "..", root_, error)))
    return Status::ok();
  ASSIGN_OR_RETURN(std::vector<checkpoint::SavedIteration> all, checkpoint::listIterations(root_));
  if (all.empty() || all.back().iteration <= step)
    return Status::ok();
  return makeStatus(report::WouldOverwrite, root_, all.back().iteration, step,
                    plan_->job.checkpoint.finetune ? " and leave 'checkpoint.finetune' out" : "");
}

/// The common status of all ranks, returned on all ranks.
Status Saver::agree(std::string_view what, Status mine) const {
  return peers_ ? peers_->agree(what, mine) : mine;
}

/// Starts the thread at the first save. If that fails, the next save tries again.
Status Saver::needThread() {
  using Part = SaveThread::Part;
  if (thread_)
    return Status::ok();
  thread_ = std::make_unique<SaveThread>(job_, snapshot_, executable_, root_,
                                         isFirst() ? mostRecent_ : -1,
                                         !peers_     ? Part::Alone
                                         : isFirst() ? Part::First
                                                     : Part::Other,
                                         memory_ != nullptr && isInBackground());
  Status status = thread_->start();
  if (!status.isOk())
    thread_.reset();
  return status;
}

/// Handles the result of a save. A failure is reported, or returned if it ends the run.
Status Saver::judge(int64_t step, Status status) {
  lastStatus_ = std::move(status);
  if (lastStatus_.isOk())
    return Status::ok();
  lastStatus_ = std::move(lastStatus_)
                    .withContext(fmt::format("step {} is not saved", step))
                    .as(report::StepNotSaved.info());
  // In these cases, the caller that ends the run reports the reason, or the supervisor that has
  // ended all ranks has reported it.
  if (stopsOnError_ || lastStatus_.code() == StatusCode::Aborted)
    return lastStatus_;
  emit_(lastStatus_.report());
  return Status::ok();
}

bool Saver::isUnderWay() { return peers_ ? isShared_ : thread_ && thread_->isBusy(); }

/// Whether a save or an image waits for the state of a step that has not ended yet.
bool Saver::isAwaitingState() {
  return (thread_ && thread_->awaitedStep()) || (memory_ && memory_->awaitedStep());
}

/// Whether saves are written in the background. Plans also have background segments for saves in
/// memory.
bool Saver::isInBackground() const {
  const auto &options = plan_->job.checkpoint;
  return !snapshot_.empty() && (options.asyncSave || options.inMemoryInterval == 0);
}

bool Saver::readsCells() const {
  return amaxHistoryOf(*plan_) != nullptr || rankWithExpertBias(*plan_);
}

Result<bool> Saver::saveAhead(int64_t step) {
  // If there are several pieces, or another save is running, steps would have to wait, so the step
  // may as well end first. The same holds for an amax history and an expert bias, which are read
  // between steps. It also holds if a copy of an earlier step waits for that step's state, since it
  // uses the same memory.
  if (!isInBackground() || snapshot_.size() != 1 || isUnderWay() || readsCells() ||
      isAwaitingState())
    return false;
  RETURN_IF_ERROR(begin(step).status());
  return true; // also if the save could not begin, which was reported
}

/// Begins a save with its first piece. No other save may be running. False if it could not begin.
Result<bool> Saver::begin(int64_t step) {
  RETURN_IF_ERROR(needThread());
  RETURN_IF_ERROR(reportOutcome());
  if (peers_) { // others may write only once the folder exists
    Status begun =
        agree("beginning a save",
              isFirst() ? checkpoint::beginSave(job_.target(root_, step)) : Status::ok());
    if (!begun.isOk()) {
      RETURN_IF_ERROR(judge(step, std::move(begun)));
      return false;
    }
    isShared_ = true;
    isDecided_ = false;
  }
  if (memory_)
    memory_->awaitCopied(); // saves in memory read the copy that this save overwrites
  RETURN_IF_ERROR(copyPiece(0));
  thread_->begin(step);
  if (!memory_ || !memory_->isDue(step))
    return true;
  copiedAt_ = step;
  ASSIGN_OR_RETURN(bool mayBegin, memory_->mayBegin(step, /*isHostFree=*/true));
  if (mayBegin)
    memory_->begin(step);
  return true;
}

/// Begins a copy in memory without a save. Skips the step if the copy of the state on the host is
/// still being read.
Status Saver::beginCopy(int64_t step) {
  ASSIGN_OR_RETURN(bool mayBegin, memory_->mayBegin(step, !thread_ || thread_->isHostFree()));
  if (!mayBegin)
    return Status::ok();
  RETURN_IF_ERROR(copyPiece(0));
  memory_->begin(step);
  return Status::ok();
}

Result<bool> Saver::copyAhead(int64_t step) {
  if (readsCells())
    return false;
  RETURN_IF_ERROR(beginCopy(step));
  return true;
}

Status Saver::copy(const StepState &state) {
  ASSIGN_OR_RETURN(Progress progress, progressWithCells(state));
  RETURN_IF_ERROR(beginCopy(state.step));
  return giveProgress(progress);
}

/// Passes the state of a step to the image or the save that waits for it.
Status Saver::giveProgress(const Progress &progress) {
  bool isForMemory = memory_ && memory_->awaitedStep() == progress.step;
  bool isForSave = thread_ && thread_->awaitedStep() == progress.step;
  if (isForMemory)
    memory_->setProgress(progress);
  if (isForSave)
    thread_->setProgress(progress);
  if (!memory_ || !memory_->areAwaited())
    return Status::ok();
  if (isForSave)
    thread_->awaitHost();
  return isForMemory ? memory_->awaitKept() : Status::ok();
}

/// Queues the copies of a piece, for all roles of ranks in this process.
Status Saver::copyPiece(size_t piece) {
  for (const RoleSnapshot &role : snapshot_[piece].roles)
    for (uint32_t segment : role.segments)
      RETURN_IF_ERROR(executable_->launchBackground(segment));
  return Status::ok();
}

Status Saver::stepEnded(const StepState &state) {
  if (isAwaitingState())
    RETURN_IF_ERROR(giveProgress(progressAfter(*plan_, begin_, state)));
  if (!thread_)
    return Status::ok();
  return isShared_ ? exchange() : reportOutcome();
}

/// Exchanges the progress of a save between all ranks, which then reach the same decision. All
/// ranks call it in the same steps.
Status Saver::exchange() {
  ASSIGN_OR_RETURN(std::vector<hal::Peers::Kind> all,
                   peers_->allKinds("how far a save is", thread_->progress()));
  const std::string &first = all.front().part; // of rank 0
  if (!isDecided_) {
    auto failed = std::ranges::find_if(all, [](const hal::Peers::Kind &said) {
      return said.part != "writing" && said.part != "written";
    });
    isDecided_ = failed != all.end() || (all.size() == 1 && first == "written");
    if (isDecided_)
      thread_->decide(failed != all.end() ? SaveThread::failureOf(failed->part) : Status::ok());
    return Status::ok();
  }
  if (first == "written" || first == "writing")
    return Status::ok(); // rank 0 has not committed yet
  thread_->wait();
  isShared_ = false;
  std::optional<SaveThread::Outcome> outcome = thread_->takeOutcome();
  if (!outcome)
    return Status::ok();
  outcome->status = first == "done" ? Status::ok() : SaveThread::failureOf(first);
  return conclude(std::move(*outcome));
}

/// Waits until no save is running. All queued steps must have ended.
Status Saver::await() {
  if (std::optional<int64_t> step = thread_->awaitedStep())
    return makeStatus(
        report::PlanCannotRun,
        "step {} is not saved: the plan's steps have ended, but its step state has not "
        "reached this step; its ops do not count the steps",
        *step);
  if (!peers_)
    thread_->wait();
  while (isShared_) {
    RETURN_IF_ERROR(exchange());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return reportOutcome();
}

Status Saver::save(const StepState &state) {
  ASSIGN_OR_RETURN(Progress progress, progressWithCells(state));
  return isInBackground() ? saveInBackground(progress) : saveNow(progress);
}

Result<Progress> Saver::progressWithCells(const StepState &state) {
  Progress progress = progressAfter(*plan_, begin_, state);
  if (isFirst())
    RETURN_IF_ERROR(readCell(0, amaxHistoryOf, progress.amaxHistory));
  std::optional<int64_t> holder = rankWithExpertBias(*plan_);
  for (size_t rank = 0; holder && rank < executable_->rankCount(); ++rank)
    if (executable_->worldRank(rank) == *holder)
      RETURN_IF_ERROR(readCell(rank, expertBiasOf, progress.expertBias));
  return progress;
}

/// Reads a cell of one rank of this process; its content is the same on all ranks.
Status Saver::readCell(size_t rank, CellOf cellOf, std::vector<float> &content) {
  const plan::Cell *cell = cellOf(*plan_, exec::roleOf(*plan_, executable_->worldRank(rank)));
  if (cell == nullptr)
    return Status::ok();
  RETURN_IF_ERROR(executable_->backend().synchronize());
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable_->arenas(rank).resolve(cell->place, cell->type.bytes(), cell->name));
  content.resize(static_cast<size_t>(cell->type.numel()));
  return executable_->read(rank, address, cell->type.bytes(), content.data());
}

Status Saver::saveInBackground(const Progress &progress) {
  RETURN_IF_ERROR(needThread());
  if (isUnderWay()) {
    emit_(makeReport(report::SaveWaits, progress.step));
    RETURN_IF_ERROR(await());
  }
  ASSIGN_OR_RETURN(bool isBegun, begin(progress.step));
  if (!isBegun)
    return Status::ok();
  RETURN_IF_ERROR(giveProgress(progress));
  for (size_t piece = 1; piece < snapshot_.size(); ++piece) {
    if (!thread_->waitForPieces(piece))
      return Status::ok(); // the save has failed; its outcome has the reason
    RETURN_IF_ERROR(copyPiece(piece));
    thread_->pieceQueued();
  }
  return Status::ok();
}

Status Saver::finish() {
  if (!thread_)
    return Status::ok();
  RETURN_IF_ERROR(await());
  thread_->end(); // removes remaining old checkpoints
  Status status = reportOutcome();
  thread_.reset();
  return status;
}

void Saver::abandon() {
  if (memory_)
    memory_->release();
  if (!thread_)
    return;
  thread_->end();
  static_cast<void>(reportOutcome()); // the run has already failed
  thread_.reset();
}

Status Saver::reportOutcome() {
  std::optional<SaveThread::Outcome> outcome = thread_->takeOutcome();
  return outcome ? conclude(std::move(*outcome)) : Status::ok();
}

/// A failure to remove old checkpoints is only reported, since the new one is complete.
Status Saver::conclude(SaveThread::Outcome outcome) {
  if (!outcome.path.empty()) {
    bool isSaved = outcome.status.isOk();
    RETURN_IF_ERROR(judge(outcome.step, std::move(outcome.status)));
    if (isSaved)
      noteSaved(outcome.step, outcome.path, outcome.copied);
  }
  if (!outcome.cleanup.isOk())
    emit_(std::move(outcome.cleanup)
              .withContext("old checkpoints are kept")
              .as(report::OldCheckpointsKept.info())
              .report());
  return Status::ok();
}

void Saver::noteSaved(int64_t step, const std::string &path, const Status &copied) {
  emit_(makeReport(report::CheckpointSaved, step, path,
                   plan::formatBytes(layout_.bytes(job_.savesOptimizer))));
  if (!copied.isOk())
    emit_(makeReport(report::HfCopyNotWritten, step, copied.message()));
}

Status Saver::saveNow(const Progress &progress) {
  SaveTarget target = job_.target(root_, progress.step);
  Status copied;
  Status status = write(target, progress, copied);
  if (!status.isOk()) {
    if (isFirst()) // only the first failure is reported
      static_cast<void>(checkpoint::abandonSave(target));
    return judge(progress.step, std::move(status));
  }
  lastStatus_ = Status::ok();
  noteSaved(progress.step, target.path(), copied);
  if (mostRecent_ < 0 || !isFirst())
    return Status::ok();
  RETURN_IF_ERROR(needThread());
  RETURN_IF_ERROR(reportOutcome());
  thread_->cleanUp();
  return Status::ok();
}

/// Writes a save in the foreground. Ranks of this process write one after the other; other
/// processes write at the same time.
Status Saver::write(const SaveTarget &target, const Progress &progress, Status &copied) {
  RETURN_IF_ERROR(executable_->backend().synchronize());
  RETURN_IF_ERROR(
      agree("beginning a save", isFirst() ? checkpoint::beginSave(target) : Status::ok()));
  Status written, committed;
  {
    Writing writing(job_);
    for (size_t rank = 0; rank < executable_->rankCount() && written.isOk(); ++rank)
      written = writeRank(rank, target, progress);
  }
  RETURN_IF_ERROR(agree("writing a save", std::move(written)));
  {
    Writing writing(job_);
    committed = isFirst() ? commitRun(job_, target, progress, copied) : Status::ok();
  }
  return agree("committing a save", std::move(committed));
}

Status Saver::writeRank(size_t rank, const SaveTarget &target, const Progress &progress) {
  ASSIGN_OR_RETURN(RankSave save,
                   RankSave::begin(job_, target, executable_->worldRank(rank), progress));
  for (const StatePiece &piece : save.pieces()) {
    RETURN_IF_ERROR(readPiece(*executable_, rank, layout_, piece, buffer_));
    RETURN_IF_ERROR(save.add(piece, 0, buffer_.data(), std::ssize(buffer_)));
  }
  return save.finish();
}

} // namespace shardc::save
