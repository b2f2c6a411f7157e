// The thread that writes snapshots and removes old checkpoints while training continues. The run's
// thread enqueues the copies and asks for the outcome; the two threads only communicate through
// this class. If arena `host` has another user, the thread copies the snapshot before it writes.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/save/RankSave.h"

namespace shardc::save {

class SaveThread {
public:
  /// Which processes write a save: this one alone, or each process the files of its ranks, and the
  /// first process commits. With several processes, the run's thread passes on their common
  /// decision.
  enum class Part : uint8_t { Alone, First, Other };

  /// The outcome of a save.
  struct Outcome {
    int64_t step = 0;
    std::string path;
    Status status;  ///< of the save itself
    Status copied;  ///< status of the Hugging Face copy
    Status cleanup; ///< of the removal of old checkpoints
  };

  /// `mostRecent` is the number of checkpoints to keep under `root`; negative: all. With
  /// `sharesHost`, snapshots, which then have one piece, are copied before they are written. All
  /// arguments must outlive the thread. Without an executable, it only removes checkpoints.
  SaveThread(const SaveJob &job, const std::vector<SnapshotPiece> &pieces,
             exec::Executable *executable, std::string root, int64_t mostRecent, Part part,
             bool sharesHost);
  ~SaveThread();
  /// Starts the thread; call it once and first. Exhausted if no thread can be started.
  Status start();

  /// Completes saves that can be completed, and ends the thread. A save whose snapshot or step is
  /// missing is abandoned.
  void end();

  /// Whether a save was begun and its outcome was not taken yet.
  bool isBusy();
  /// Begins the save of a step. No other save may be running, and the first piece of its snapshot
  /// must be queued.
  void begin(int64_t step);
  /// Provides the step's state, for which the save waits.
  void setProgress(const Progress &progress);
  /// The step for whose state a save waits; nothing if none does.
  std::optional<int64_t> awaitedStep();
  /// Notes that another piece of the snapshot was queued.
  void pieceQueued();
  /// Waits until `count` pieces are written. False if the save has failed.
  bool waitForPieces(size_t count);
  /// isHostFree() says whether arena `host` may be overwritten, and awaitHost() waits for it. The
  /// latter must not be called while a save waits for a step's state.
  bool isHostFree();
  void awaitHost();
  /// Waits until no save is running.
  void wait();
  /// The progress of a common save in this process, as a text for other processes: "writing",
  /// "written", "done", or a text for failureOf.
  std::string progress();
  /// The failure in another process' progress.
  static Status failureOf(std::string_view progress);
  /// Sets the common decision of all processes: the first one commits, or all give up.
  void decide(Status status);
  /// The outcome of the latest save; can be taken once.
  std::optional<Outcome> takeOutcome();
  /// Removes old checkpoints.
  void cleanUp();

private:
  struct Task {
    int64_t step = 0;
    std::optional<Progress> progress;
    size_t queued = 1, written = 0; ///< numbers of pieces
    bool isHostFree = false;        ///< the snapshot was copied, written or given up
    bool isWritten = false;         ///< files of this process
    Status failure;                 ///< the reason if they were not written
    std::optional<Status> decision; ///< common decision of all processes
  };

  void run();
  Outcome saveTask(std::unique_lock<std::mutex> &lock);
  Status writeTask(const checkpoint::SaveTarget &target, Status &copied,
                   std::unique_lock<std::mutex> &lock);
  Status writeRanks(const checkpoint::SaveTarget &target, const Progress &progress,
                    std::unique_lock<std::mutex> &lock);
  Status awaitDecision(Status mine, std::unique_lock<std::mutex> &lock);
  Status writePieces(std::vector<RankSave> &ranks, std::unique_lock<std::mutex> &lock);
  Status writePiece(const SnapshotPiece &piece, std::vector<RankSave> &ranks);
  template <typename Use> Status forCopies(const SnapshotPiece &piece, const Use &use);
  Status copySnapshot();
  Status waitForCopies();
  Status removeOld() const;

  const SaveJob &job_;
  const std::vector<SnapshotPiece> &pieces_;
  exec::Executable *executable_;
  std::string root_;
  int64_t mostRecent_;
  Part part_;
  bool sharesHost_;
  std::unique_ptr<uint8_t[]> copied_; ///< the copied snapshot, while it is written

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Task> task_;
  std::optional<Outcome> outcome_;
  bool wantsCleanUp_ = false, isEnding_ = false;
  std::thread thread_;
};

} // namespace shardc::save
