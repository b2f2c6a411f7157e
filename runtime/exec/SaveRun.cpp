#include "runtime/exec/SaveRun.h"

#include <filesystem>
#include <unistd.h>

#include "runtime/plan/Summary.h"

namespace shardc::exec {
namespace {

using checkpoint::SaveTarget;

/// Makes the folder that checkpoints go into, and sees that files can be made in it.
Status makeRoot(const std::string &root) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  if (error)
    return makeStatus(StatusCode::Io, "checkpoint.save: cannot make the folder '{}': {}", root,
                      error.message());
  if (::access(root.c_str(), W_OK | X_OK) != 0)
    return makeStatus(StatusCode::Io, "checkpoint.save: '{}' cannot be written into", root);
  return Status::ok();
}

} // namespace

std::vector<std::string> checkCheckpointOptions(const plan::Plan &plan) {
  std::vector<std::string> used, findings;
  for (const char *path :
       {"checkpoint.save", "checkpoint.load", "checkpoint.pretrained_checkpoint"})
    if (!plan.jobString(path, "").empty())
      used.push_back(path);
  if (used.empty())
    return {};
  Result<SaveFormat> format = saveFormatOf(plan);
  bool isFsdp = plan.jobBool("ddp.use_megatron_fsdp", false);
  if (!format.isOk())
    findings.push_back(fmt::format("'{}' is set: {}", used[0], format.status().message()));
  else if (*format == SaveFormat::FsdpDtensor && !isFsdp)
    findings.push_back("fsdp_dtensor checkpoint format only supports Megatron FSDP");
  else if (*format != SaveFormat::FsdpDtensor && isFsdp)
    findings.push_back("Megatron FSDP only supports fsdp_dtensor checkpoint format");
  if (findings.empty())
    if (auto layout = StateLayout::create(plan); !layout.isOk())
      findings.push_back("checkpoint: " + layout.status().message());
  return findings;
}

Saver::Saver(const plan::Plan &plan, StateLayout layout, Voice voice, hal::Peers *peers)
    : plan_(&plan), layout_(std::move(layout)), voice_(std::move(voice)), peers_(peers),
      root_(plan.jobString("checkpoint.save", "")),
      interval_(plan.jobInt("checkpoint.save_interval", 0)),
      mostRecent_(plan.jobInt("checkpoint.most_recent_k", -1)),
      stopsOnError_(plan.jobBool("checkpoint.stop_on_save_error", false)) {}

Saver::~Saver() = default;

Result<std::unique_ptr<Saver>> Saver::create(const plan::Plan &plan, Voice voice,
                                             hal::Peers *peers) {
  if (plan.jobString("checkpoint.save", "").empty())
    return std::unique_ptr<Saver>();
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
  std::unique_ptr<Saver> saver(new Saver(plan, std::move(layout), std::move(voice), peers));
  ASSIGN_OR_RETURN(saver->job_, SaveJob::of(plan, saver->layout_));
  ASSIGN_OR_RETURN(saver->snapshot_, snapshotPieces(plan, saver->layout_));
  RETURN_IF_ERROR(saver->agree("preparing the folder of checkpoints",
                               saver->isFirst() ? saver->prepareRoot() : Status::ok()));
  if (peers && !saver->snapshot_.empty()) {
    // The thread cannot ask the other processes, whose exchanges have one order for all.
    saver->voice_.say("remark: with a process a rank, steps wait for each save; what is saved is "
                      "the same");
    saver->snapshot_.clear();
  }
  return saver;
}

Status Saver::prepareRoot() {
  RETURN_IF_ERROR(makeRoot(root_));
  ASSIGN_OR_RETURN(std::vector<std::string> done, checkpoint::recoverInterrupted(root_));
  for (const std::string &sentence : done)
    voice_.say(sentence);
  return Status::ok();
}

/// The status of all ranks, on all ranks.
Status Saver::agree(std::string_view what, Status mine) const {
  return peers_ ? peers_->agree(what, mine) : mine;
}

void Saver::needThread() {
  if (!thread_)
    thread_ = std::make_unique<SaveThread>(job_, snapshot_, executable_, root_, mostRecent_);
}

/// Tells a failure, and whether it ends the run.
Status Saver::judge(int64_t step, Status status) {
  lastStatus_ = std::move(status);
  if (lastStatus_.isOk())
    return Status::ok();
  lastStatus_ = std::move(lastStatus_).withContext(fmt::format("step {} is not saved", step));
  if (stopsOnError_)
    return lastStatus_; // whoever ends the run tells why
  voice_.fail(lastStatus_);
  return Status::ok();
}

Result<bool> Saver::saveAhead(int64_t step) {
  // Several pieces, or a save under way, make steps wait: then the step may as well end first.
  if (snapshot_.size() != 1 || (thread_ && thread_->isBusy()))
    return false;
  needThread();
  RETURN_IF_ERROR(tellOutcome());
  RETURN_IF_ERROR(executable_->launchBackground(snapshot_[0].segment));
  thread_->begin(step);
  return true;
}

Status Saver::stepEnded(const StepState &state) {
  if (!thread_)
    return Status::ok();
  if (thread_->awaitedStep() == state.step)
    thread_->setProgress(progressAfter(*plan_, begin_, state));
  return tellOutcome();
}

Status Saver::save(const StepState &state) {
  Progress progress = progressAfter(*plan_, begin_, state);
  return snapshot_.empty() ? saveNow(progress) : saveInBackground(progress);
}

Status Saver::saveInBackground(const Progress &progress) {
  needThread();
  if (thread_->isBusy()) {
    voice_.say(fmt::format("remark: training waits after step {}: the save before is still being "
                           "written",
                           progress.step));
    thread_->wait();
  }
  RETURN_IF_ERROR(tellOutcome());
  for (size_t piece = 0; piece < snapshot_.size(); ++piece) {
    if (piece > 0 && !thread_->waitForPieces(piece))
      return Status::ok(); // it has failed; the outcome says why
    RETURN_IF_ERROR(executable_->launchBackground(snapshot_[piece].segment));
    if (piece > 0) {
      thread_->pieceQueued();
      continue;
    }
    thread_->begin(progress.step);
    thread_->setProgress(progress);
  }
  return Status::ok();
}

Status Saver::finish() {
  if (!thread_)
    return Status::ok();
  thread_->wait();
  thread_->end(); // removes what is left to be removed
  Status status = tellOutcome();
  thread_.reset();
  return status;
}

void Saver::abandon() {
  if (!thread_)
    return;
  thread_->end();
  static_cast<void>(tellOutcome()); // the run has failed already
  thread_.reset();
}

Status Saver::tellOutcome() {
  std::optional<SaveThread::Outcome> outcome = thread_->takeOutcome();
  if (!outcome)
    return Status::ok();
  if (!outcome->path.empty()) {
    bool isSaved = outcome->status.isOk();
    RETURN_IF_ERROR(judge(outcome->step, std::move(outcome->status)));
    if (isSaved)
      tellSaved(outcome->step, outcome->path, outcome->bytes);
  }
  if (!outcome->cleanup.isOk())
    voice_.fail(std::move(outcome->cleanup).withContext("old checkpoints stay"));
  return Status::ok();
}

void Saver::tellSaved(int64_t step, const std::string &path, int64_t bytes) {
  voice_.say(fmt::format("saved step {} to '{}', {}", step, path, plan::formatBytes(bytes)));
}

Status Saver::saveNow(const Progress &progress) {
  SaveTarget target = SaveTarget::iteration(root_, progress.step);
  int64_t bytes = 0;
  Status status = write(target, progress, bytes);
  if (!status.isOk()) {
    if (isFirst()) // the first failure is the one to tell
      static_cast<void>(checkpoint::abandonSave(target));
    return judge(progress.step, std::move(status));
  }
  lastStatus_ = Status::ok();
  tellSaved(progress.step, target.path(), bytes);
  if (mostRecent_ < 0 || !isFirst())
    return Status::ok();
  needThread();
  RETURN_IF_ERROR(tellOutcome());
  thread_->cleanUp();
  return Status::ok();
}

/// Ranks of this process write one after the other; those of other processes at the same time.
Status Saver::write(const SaveTarget &target, const Progress &progress, int64_t &bytes) {
  RETURN_IF_ERROR(executable_->backend().synchronize());
  RETURN_IF_ERROR(
      agree("beginning a save", isFirst() ? checkpoint::beginSave(target) : Status::ok()));
  Status written;
  for (size_t rank = 0; rank < executable_->rankCount() && written.isOk(); ++rank)
    written = writeRank(rank, target, progress, bytes);
  RETURN_IF_ERROR(agree("writing a save", std::move(written)));
  return agree("committing a save",
               isFirst() ? commitRun(job_, target, progress) : Status::ok());
}

Status Saver::writeRank(size_t rank, const SaveTarget &target, const Progress &progress,
                        int64_t &bytes) {
  ASSIGN_OR_RETURN(RankSave save, RankSave::begin(job_, target, executable_->worldRank(rank),
                                                  progress));
  for (const StatePiece &piece : save.pieces()) {
    const plan::Cell &cell = plan_->roles[0].cells[piece.cell];
    ASSIGN_OR_RETURN(uint8_t * address, executable_->arenas(rank).resolve(
                                            cell.place, cell.type.bytes(), cell.name));
    buffer_.resize(static_cast<size_t>(piece.bytes));
    RETURN_IF_ERROR(
        executable_->read(rank, address + piece.byteBegin, piece.bytes, buffer_.data()));
    RETURN_IF_ERROR(save.add(piece, 0, buffer_.data(), piece.bytes));
  }
  RETURN_IF_ERROR(save.finish());
  bytes += save.bytesWritten();
  return Status::ok();
}

} // namespace shardc::exec
