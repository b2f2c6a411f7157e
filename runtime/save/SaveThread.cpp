// Works on one save at a time. The mutex guards the task; it is released while the thread reads
// memory or writes files.
#include "runtime/save/SaveThread.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "runtime/base/Thread.h"

namespace shardc::save {
namespace {

/// Time between two polls for the end of a snapshot's copies.
constexpr std::chrono::microseconds kPoll{500};

} // namespace

SaveThread::SaveThread(const SaveJob &job, const std::vector<SnapshotPiece> &pieces,
                       exec::Executable *executable, std::string root, int64_t mostRecent,
                       Part part, bool sharesHost)
    : job_(job), pieces_(pieces), executable_(executable), root_(std::move(root)),
      mostRecent_(mostRecent), part_(part), sharesHost_(sharesHost) {}

Status SaveThread::start() {
  return startThread(thread_, [this] { run(); });
}

SaveThread::~SaveThread() { end(); }

void SaveThread::end() {
  if (!thread_.joinable())
    return;
  {
    std::lock_guard lock(mutex_);
    isEnding_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool SaveThread::isBusy() {
  std::lock_guard lock(mutex_);
  return task_.has_value();
}

void SaveThread::begin(int64_t step) {
  {
    std::lock_guard lock(mutex_);
    SHARDC_CHECK(!task_, "step {} is still being saved", task_->step);
    task_ = Task{.step = step};
    outcome_.reset();
  }
  changed_.notify_all();
}

void SaveThread::setProgress(const Progress &progress) {
  {
    std::lock_guard lock(mutex_);
    if (task_)
      task_->progress = progress;
  }
  changed_.notify_all();
}

std::optional<int64_t> SaveThread::awaitedStep() {
  std::lock_guard lock(mutex_);
  return task_ && !task_->progress ? std::optional(task_->step) : std::nullopt;
}

void SaveThread::pieceQueued() {
  {
    std::lock_guard lock(mutex_);
    if (task_)
      ++task_->queued;
  }
  changed_.notify_all();
}

bool SaveThread::waitForPieces(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_ || !task_->failure.isOk() || task_->written >= count; });
  return task_ && task_->failure.isOk();
}

bool SaveThread::isHostFree() {
  std::lock_guard lock(mutex_);
  return !task_ || task_->isHostFree;
}

void SaveThread::awaitHost() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_ || task_->isHostFree; });
}

void SaveThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_; });
}

std::string SaveThread::progress() {
  std::lock_guard lock(mutex_);
  const Status failure = task_ ? task_->failure : outcome_ ? outcome_->status : Status::ok();
  if (!failure.isOk())
    return packReport(failure.report());
  return !task_ ? "done" : task_->isWritten ? "written" : "writing";
}

Status SaveThread::failureOf(std::string_view progress) {
  std::optional<Report> report = unpackReport(progress);
  return report
             ? Status(*report)
             : makeStatus(StatusCode::Internal,
                          "a rank sent {} bytes that are no progress of a save", progress.size());
}

void SaveThread::decide(Status status) {
  {
    std::lock_guard lock(mutex_);
    if (task_)
      task_->decision = std::move(status);
  }
  changed_.notify_all();
}

std::optional<SaveThread::Outcome> SaveThread::takeOutcome() {
  std::lock_guard lock(mutex_);
  return std::exchange(outcome_, std::nullopt);
}

void SaveThread::cleanUp() {
  {
    std::lock_guard lock(mutex_);
    wantsCleanUp_ = true;
  }
  changed_.notify_all();
}

void SaveThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return isEnding_ || wantsCleanUp_ || task_; });
    if (task_) {
      Outcome outcome = saveTask(lock);
      outcome_ = std::move(outcome);
      task_.reset();
      changed_.notify_all();
    } else if (std::exchange(wantsCleanUp_, false)) {
      lock.unlock();
      Status status = removeOld();
      lock.lock();
      if (!status.isOk())
        outcome_ = Outcome{.step = 0, .path = {}, .status = {}, .copied = {}, .cleanup = status};
    } else {
      return;
    }
  }
}

SaveThread::Outcome SaveThread::saveTask(std::unique_lock<std::mutex> &lock) {
  Outcome outcome;
  outcome.step = task_->step;
  checkpoint::SaveTarget target = job_.target(root_, task_->step);
  outcome.path = target.path();
  outcome.status = writeTask(target, outcome.copied, lock);
  lock.unlock();
  if (outcome.status.isOk())
    outcome.cleanup = removeOld();
  else if (part_ != Part::Other) // only the first failure is reported
    static_cast<void>(checkpoint::abandonSave(target));
  lock.lock();
  return outcome;
}

/// Writes the save of the current task. The mutex is held on entry and on return.
Status SaveThread::writeTask(const checkpoint::SaveTarget &target, Status &copied,
                             std::unique_lock<std::mutex> &lock) {
  changed_.wait(lock, [&] { return isEnding_ || task_->progress; });
  if (!task_->progress)
    return makeStatus(StatusCode::Aborted, "the run has ended before the step");
  Progress progress = *task_->progress;
  Status status;
  if (sharesHost_) {
    lock.unlock();
    status = copySnapshot();
    lock.lock();
    task_->isHostFree = true;
    changed_.notify_all();
  }
  if (status.isOk())
    status = writeRanks(target, progress, lock);
  copied_.reset();
  status = awaitDecision(std::move(status), lock);
  if (!status.isOk() || part_ == Part::Other)
    return status;
  lock.unlock();
  {
    Writing writing(job_);
    status = commitRun(job_, target, progress, copied);
  }
  lock.lock();
  return status;
}

/// Writes the files of this process' ranks. The mutex is held on entry and on return.
Status SaveThread::writeRanks(const checkpoint::SaveTarget &target, const Progress &progress,
                              std::unique_lock<std::mutex> &lock) {
  lock.unlock();
  std::vector<RankSave> ranks;
  auto begin = [&]() -> Status {
    Writing writing(job_);
    if (part_ == Part::Alone) // otherwise the run's threads have called beginSave
      RETURN_IF_ERROR(checkpoint::beginSave(target));
    for (size_t rank = 0; rank < executable_->rankCount(); ++rank) {
      ASSIGN_OR_RETURN(RankSave save,
                       RankSave::begin(job_, target, executable_->worldRank(rank), progress));
      ranks.push_back(std::move(save));
    }
    return Status::ok();
  };
  Status status = begin();
  lock.lock();
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(writePieces(ranks, lock));
  lock.unlock();
  {
    Writing writing(job_);
    for (size_t rank = 0; rank < ranks.size() && status.isOk(); ++rank)
      status = ranks[rank].finish();
  }
  lock.lock();
  return status;
}

/// If other processes write too, waits for the common decision. The mutex is held on entry and on
/// return.
Status SaveThread::awaitDecision(Status mine, std::unique_lock<std::mutex> &lock) {
  if (part_ == Part::Alone)
    return mine;
  task_->isHostFree = true;
  task_->isWritten = mine.isOk();
  task_->failure = mine;
  changed_.notify_all(); // another thread may wait for a piece
  changed_.wait(lock, [&] { return isEnding_ || task_->decision; });
  if (!task_->decision)
    return makeStatus(StatusCode::Aborted, "the run has ended before all ranks had written");
  return *task_->decision;
}

/// Writes the pieces of the snapshot. The mutex is held on entry and on return.
Status SaveThread::writePieces(std::vector<RankSave> &ranks, std::unique_lock<std::mutex> &lock) {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    changed_.wait(lock, [&] { return isEnding_ || task_->queued > p; });
    if (task_->queued <= p)
      return makeStatus(StatusCode::Aborted,
                        "the run has ended before all of the state was copied");
    lock.unlock();
    Status status = copied_ ? Status::ok() : waitForCopies();
    if (status.isOk())
      status = writePiece(pieces_[p], ranks);
    lock.lock();
    RETURN_IF_ERROR(std::move(status));
    task_->written = p + 1;
    changed_.notify_all();
  }
  return Status::ok();
}

/// Waits for the snapshot's copies by polling, since a thread that waits in the backend takes part
/// in its detection of deadlocks.
Status SaveThread::waitForCopies() {
  while (!executable_->isBackgroundDone()) {
    std::this_thread::sleep_for(kPoll);
    std::lock_guard lock(mutex_);
    if (isEnding_ && !executable_->isBackgroundDone())
      return makeStatus(StatusCode::Aborted, "the run has ended before the state was copied");
  }
  return Status::ok();
}

/// Calls `use` for each copy of ranks in this process.
template <typename Use> Status SaveThread::forCopies(const SnapshotPiece &piece, const Use &use) {
  for (const RoleSnapshot &role : piece.roles)
    for (size_t rank : executable_->ranksOf(role.segments.front()))
      for (const SnapshotCopy &copy : role.copies)
        RETURN_IF_ERROR(use(rank, copy));
  return Status::ok();
}

/// The data was either copied to host memory before, one copy after the other, or is still in the
/// snapshot's arena.
Status SaveThread::writePiece(const SnapshotPiece &piece, std::vector<RankSave> &ranks) {
  Writing writing(job_);
  const uint8_t *copied = copied_.get();
  return forCopies(piece, [&](size_t rank, const SnapshotCopy &copy) -> Status {
    const exec::Arenas &arenas = executable_->arenas(rank);
    const uint8_t *data = copied;
    if (copied) {
      copied += copy.bytes;
    } else {
      ASSIGN_OR_RETURN(data, arenas.resolve(copy.place, copy.bytes, "a snapshot"));
    }
    int64_t begin = copy.byteBegin.at(arenas.indices().of(copy.byteBegin.group));
    return ranks[rank].addCell(copy.cell, begin, data, copy.bytes);
  });
}

/// Copies the snapshot to memory from which the thread then writes files. Writing may take as long
/// as the disk needs; meanwhile, arena `host` is free.
Status SaveThread::copySnapshot() {
  SHARDC_CHECK(pieces_.size() == 1, "{} pieces share the arena with others", pieces_.size());
  RETURN_IF_ERROR(waitForCopies());
  int64_t bytes = 0;
  RETURN_IF_ERROR(forCopies(pieces_.front(), [&](size_t, const SnapshotCopy &copy) {
    bytes += copy.bytes;
    return Status::ok();
  }));
  copied_.reset(new (std::nothrow) uint8_t[static_cast<size_t>(bytes)]);
  if (!copied_)
    return makeStatus(StatusCode::Exhausted, "there is no memory for {} bytes of state", bytes);
  uint8_t *to = copied_.get();
  return forCopies(pieces_.front(), [&](size_t rank, const SnapshotCopy &copy) -> Status {
    ASSIGN_OR_RETURN(uint8_t * data,
                     executable_->arenas(rank).resolve(copy.place, copy.bytes, "a snapshot"));
    std::memcpy(to, data, static_cast<size_t>(copy.bytes));
    to += copy.bytes;
    return Status::ok();
  });
}

Status SaveThread::removeOld() const {
  if (mostRecent_ < 0)
    return Status::ok();
  Writing writing(job_);
  auto keep = static_cast<int>(std::min<int64_t>(mostRecent_, 1 << 30));
  return checkpoint::removeOldIterations(root_, keep, job_.observers,
                                         job_.plan->job.checkpoint.saveRetainInterval);
}

} // namespace shardc::save
