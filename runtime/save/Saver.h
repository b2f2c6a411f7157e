// Saves a run's state while it trains: which steps are due, how they are saved, and how many
// checkpoints are kept. On request in the background: a snapshot into host memory, which a thread
// writes. A failed save is reported once; training continues, or ends if the recipe says so.
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

/// InvalidInput or Unavailable if the plan saves or loads and its checkpoint options cannot be
/// followed here.
Status checkCheckpointOptions(const plan::Plan &plan);

class Saver final : public run::StateKeeper {
public:
  /// Creates the folder if needed, locks it, and removes leftovers of interrupted saves.
  /// Unavailable if another run or conversion saves there. Returns null if the plan does not save.
  /// `emit` receives the results of saves, on the calling thread. The plan and `peers` must outlive
  /// the saver. `peers` are the ranks in other processes, all of which call this; null if there are
  /// none.
  static Result<std::unique_ptr<Saver>> create(const plan::Plan &plan, ReportSink emit,
                                               hal::Peers *peers = nullptr,
                                               const checkpoint::Observers &observers = {});
  ~Saver() override;

  /// InvalidInput where the run's saves would replace checkpoints of another run: one that it does
  /// not continue, from `continued`, and that went further than `step`. The recipe may ask for it.
  Status checkOverwrites(int64_t step, const std::string &continued) const;
  /// Sets the executable whose state is saved. It must outlive the saver's use.
  void attach(exec::Executable &executable) { executable_ = &executable; }
  /// Sets the copies in memory that are made between saves, or null. They use the executable too.
  void setMemory(MemorySaves *memory) { memory_ = memory; }
  void setBegin(const Progress &begin) { begin_ = begin; }
  /// Sets the files that each save includes. Call it before the first save.
  void setModelFiles(std::vector<checkpoint::HfModelFile> files) {
    job_.modelFiles = std::move(files);
  }
  void setBaseRecord(std::string record) { job_.baseRecord = std::move(record); }
  /// The job goes on with another plan (runtime/plan/JobFacts.h), from `begin` on; the last save
  /// has ended. Comes before `attach`.
  Status turnTo(const plan::Plan &plan, const Progress &begin);
  /// The last save's failure, if it failed.
  const Status &lastStatus() const { return lastStatus_; }
  /// Files are being written. Any thread may ask.
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
  /// Ends pending work after a failure of the run; saves that can be completed are completed. The
  /// executable is not used any more.
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
  /// Saves are written by a thread, from the background segments' copies.
  bool isInBackground() const;
  /// Whether some values are read between steps.
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
  hal::Peers *peers_; ///< null if all ranks are here
  std::string root_;
  checkpoint::FolderLock lock_; ///< on the folder; the first rank has it for all
  int64_t interval_ = 0, mostRecent_ = -1;
  bool stopsOnError_ = false;
  std::vector<SnapshotPiece> snapshot_; ///< of the plan's background segments
  exec::Executable *executable_ = nullptr;
  MemorySaves *memory_ = nullptr;
  int64_t copiedAt_ = -1; ///< the step whose save began its copy in memory too
  Progress begin_;
  Status lastStatus_;
  std::vector<uint8_t> buffer_; ///< one piece
  std::unique_ptr<SaveThread> thread_;
  bool isShared_ = false, isDecided_ = false; ///< of a save with the peers, alike on all ranks
};

} // namespace shardc::save
