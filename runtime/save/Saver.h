// Saves a run's state during training: which steps are due, how they are saved, and how many
// checkpoints are kept. On request, saves run in the background: a thread writes a snapshot from
// host memory. A failed save is reported once. Training then continues, or ends if the recipe
// requests it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/FolderLock.h"
#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/MemorySaves.h"
#include "runtime/save/RankSave.h"
#include "runtime/save/SaveThread.h"

namespace shardc::save {

/// InvalidInput or Unavailable if the plan's checkpoint options cannot be followed here.
Status checkCheckpointOptions(const plan::Plan &plan);

class Saver final : public run::StateKeeper {
public:
  /// Creates and locks the folder, and removes leftovers of interrupted saves. Unavailable if
  /// another run or conversion saves there. Returns null if the plan does not save. `emit` receives
  /// the results of saves on the calling thread. `peers` are the ranks in other processes, which
  /// call this together, or null if there are none. The plan and `peers` must outlive the saver.
  static Result<std::unique_ptr<Saver>> create(const plan::Plan &plan, ReportSink emit,
                                               hal::Peers *peers = nullptr,
                                               const checkpoint::Observers &observers = {});
  ~Saver() override;

  /// InvalidInput if the run's saves would replace checkpoints of another run, unless the recipe
  /// allows it: a run that this one does not continue (`continued` is the folder that it continues)
  /// and that went beyond `step`.
  Status checkOverwrites(int64_t step, const std::string &continued) const;
  /// Sets the executable whose state is saved. It must outlive its use by the saver.
  void attach(exec::Executable &executable) { executable_ = &executable; }
  /// Sets the object that saves in memory between saves, or null. It uses the executable, too.
  void setMemory(MemorySaves *memory) { memory_ = memory; }
  void setBegin(const Progress &begin) { begin_ = begin; }
  /// Sets the files that each save includes. Call it before the first save.
  void setModelFiles(std::vector<checkpoint::HfModelFile> files) {
    job_.modelFiles = std::move(files);
  }
  void setBaseRecord(std::string record) { job_.baseRecord = std::move(record); }
  /// Continues with another plan of the job (runtime/plan/JobFacts.h), starting with progress
  /// `begin`. The last save must have ended. Call it before `attach`.
  Status turnTo(const plan::Plan &plan, const Progress &begin);
  /// The status of the last save.
  const Status &lastStatus() const { return lastStatus_; }
  /// Whether files are being written. Any thread may call it.
  bool isWriting() const { return writers_.load(std::memory_order_relaxed) > 0; }

  bool isDue(int64_t step) const override { return interval_ > 0 && step % interval_ == 0; }
  Result<bool> saveAhead(int64_t step) override;
  Status stepEnded(const StepState &state) override;
  Status save(const StepState &state) override;
  bool isCopyDue(int64_t step) const override {
    return memory_ && memory_->isDue(step) && step != copiedAt_;
  }
  Result<bool> copyAhead(int64_t step) override;
  Status copy(const StepState &state) override;
  Status finish() override;
  /// Ends pending work after a failure of the run. Saves that can be completed are completed. The
  /// executable is not used afterwards.
  void abandon();

private:
  Saver(const plan::Plan &plan, StateLayout layout, ReportSink emit, hal::Peers *peers);
  bool isFirst() const { return !peers_ || peers_->rank() == 0; }
  Status agree(std::string_view what, Status mine) const;
  Status prepareRoot();
  Status needThread();
  using CellOf = const plan::Cell *(*)(const plan::Plan &, uint32_t role);
  Status readCell(size_t rank, CellOf cellOf, std::vector<float> &content);
  Status saveNow(const Progress &progress);
  Status write(const checkpoint::SaveTarget &target, const Progress &progress, Status &copied);
  Status writeRank(size_t rank, const checkpoint::SaveTarget &target, const Progress &progress);
  /// Whether a thread writes saves from the copies of background segments.
  bool isInBackground() const;
  /// Whether some values must be read between steps.
  bool readsCells() const;
  Result<Progress> progressWithCells(const StepState &state);
  Status saveInBackground(const Progress &progress);
  Status beginCopy(int64_t step);
  bool isUnderWay();
  bool isAwaitingState();
  Status giveProgress(const Progress &progress);
  Result<bool> begin(int64_t step);
  Status copyPiece(size_t piece);
  Status await();
  Status exchange();
  Status judge(int64_t step, Status status);
  Status reportOutcome();
  Status conclude(SaveThread::Outcome outcome);
  void noteSaved(int64_t step, const std::string &path, const Status &copied);

  const plan::Plan *plan_;
  StateLayout layout_;
  SaveJob job_;
  std::atomic<int> writers_{0};
  ReportSink emit_;
  hal::Peers *peers_; ///< null if all ranks are in this process
  std::string root_;
  checkpoint::FolderLock lock_; ///< lock of the folder; the first rank holds it for all
  int64_t interval_ = 0, mostRecent_ = -1;
  bool stopsOnError_ = false;
  std::vector<SnapshotPiece> snapshot_; ///< pieces of the plan's background segments
  exec::Executable *executable_ = nullptr;
  MemorySaves *memory_ = nullptr;
  int64_t copiedAt_ = -1; ///< the step whose save also began its copy in memory
  Progress begin_;
  Status lastStatus_;
  std::vector<uint8_t> buffer_; ///< bytes of one piece
  std::unique_ptr<SaveThread> thread_;
  bool isShared_ = false, isDecided_ = false; ///< state of a save with peers, the same on all ranks
};

} // namespace shardc::save
