// The thread that writes snapshots and removes old checkpoints while training continues. The run's
// thread enqueues the copies and asks for the outcome; the two communicate only through this class.
// Where the arena `host` has another user, the thread copies the snapshot before it writes.
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
  /// The processes that write a save: this one alone, or each the files of its ranks, where the
  /// first one commits. With other processes, the run's thread passes on what all have decided.
  enum class Part : uint8_t { Alone, First, Other };

  /// What came of a save.
  struct Outcome {
    int64_t step = 0;
    std::string path;
    Status status;  ///< of the save
    Status copied;  ///< of its Hugging Face copy
    Status cleanup; ///< of the removal of old checkpoints
  };

  /// `mostRecent` checkpoints stay under `root`, all if it is negative. `sharesHost`: snapshots, of
  /// one piece, are copied before they are written. Everything that is given outlives the thread;
  /// without an executable it only removes.
  SaveThread(const SaveJob &job, const std::vector<SnapshotPiece> &pieces,
             exec::Executable *executable, std::string root, int64_t mostRecent, Part part,
             bool sharesHost);
  ~SaveThread();
  /// Call once, before all others. Exhausted where no thread can be started.
  Status start();

  /// Completes the saves that can be completed, and ends the thread: a save whose snapshot or step
  /// is missing is abandoned.
  void end();

  /// True from `begin` until the outcome can be taken.
  bool isBusy();
  /// Begins the save of a step; none may be under way. Its snapshot's first piece is queued.
  void begin(int64_t step);
  /// The step's state, which the save waits for.
  void setProgress(const Progress &progress);
  /// The step that waits for its state; none if no save does.
  std::optional<int64_t> awaitedStep();
  /// Another piece of the snapshot is queued.
  void pieceQueued();
  /// Waits until so many pieces are written, or the save has failed: false then.
  bool waitForPieces(size_t count);
  /// Whether the arena `host` may be written again; waits until it may. Not while a step's state is
  /// awaited.
  bool isHostFree();
  void awaitHost();
  /// Waits until no save is under way.
  void wait();
  /// The progress of a common save in this process, for the others: "writing", "written", "done",
  /// or a text for failureOf.
  std::string progress();
  /// The failure that another process' progress reports of.
  static Status failureOf(std::string_view progress);
  /// The decision of all processes: the first one commits, or all give up.
  void decide(Status status);
  /// What came of the latest save, once.
  std::optional<Outcome> takeOutcome();
  /// Removes old checkpoints.
  void cleanUp();

private:
  struct Task {
    int64_t step = 0;
    std::optional<Progress> progress;
    size_t queued = 1, written = 0; ///< pieces
    bool isHostFree = false;        ///< all of the snapshot is copied or written, or given up
    bool isWritten = false;         ///< this process' files
    Status failure;                 ///< why they are not
    std::optional<Status> decision; ///< of all processes
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
  std::unique_ptr<uint8_t[]> copied_; ///< the snapshot, for as long as it is written

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Task> task_;
  std::optional<Outcome> outcome_;
  bool wantsCleanUp_ = false, isEnding_ = false;
  std::thread thread_;
};

} // namespace shardc::save
