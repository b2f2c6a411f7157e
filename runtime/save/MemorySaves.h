// Saves in memory (`checkpoint.in_memory_interval`): every so many steps a thread copies what a
// background segment has put into the arena `host` into memory that outlives this process, and
// sends it to the neighbour that keeps a second copy. At a restart all ranks choose the images from
// which they go on (ImageChoice.h). docs/adr/0035-saves-in-memory.md.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"
#include "runtime/save/ImageChoice.h"
#include "runtime/save/ImageExchange.h"
#include "runtime/save/ImageLayout.h"
#include "runtime/save/Loader.h"

namespace shardc::save {

/// Bytes of the largest image that a rank of these plans makes, 0 if they make none. PlanCannotRun
/// if a plan copies state in pieces.
Result<int64_t> imageBytesMax(std::span<const plan::Plan> plans);

struct MemoryOptions {
  /// ImageSlots of this rank, and of the rank whose neighbour it is; empty without neighbours.
  std::span<uint8_t> own, guest;
  uint64_t planHash = 0;
  /// The plans for all numbers of ranks that the job may have; they outlive the MemorySaves.
  std::span<const plan::Plan> plans;
  std::string machine;        ///< that this rank is on
  double timeoutSeconds = 60; ///< of a transfer in which nothing moves
  /// Receives reports, equal on all ranks, on the calling thread.
  ReportSink emit;
  /// A test's fault: takes images of this rank that are complete, here and at the neighbour.
  std::function<void(int64_t step, std::span<uint8_t> image)> imageFault;
  /// A test's steps wait for their images (run::Fault::awaitsKept).
  bool areAwaited = false;
};

/// The state from which a restart continues.
struct MemoryState {
  size_t phase = 0; ///< of the plans
  Progress progress;
  std::unique_ptr<StateSource> source; ///< outlived by the MemorySaves
  std::string whose;                   ///< for people
  double secondsLost = 0;              ///< since the step had ended
};

class MemorySaves {
public:
  /// All ranks call it together. The plans and the peers outlive it.
  static Result<std::unique_ptr<MemorySaves>> create(std::span<const plan::Plan> plans,
                                                     hal::Peers &peers, MemoryOptions options);
  ~MemorySaves();
  MemorySaves(const MemorySaves &) = delete;
  MemorySaves &operator=(const MemorySaves &) = delete;

  /// All ranks call it together after a restart, before any image is made: the newest state in
  /// memory after a step behind `newerThan`. Images that are not chosen are dropped.
  Result<std::optional<MemoryState>> restore(int64_t newerThan);

  /// Sets the executable whose state is copied from here on. No unfinished copy may exist.
  void attach(size_t phase, exec::Executable &executable);
  /// Stops using the executable: an image whose state has not arrived is abandoned.
  void release();

  /// Whether to save after this step: at each interval, and after a save that was skipped.
  bool isDue(int64_t step) const { return isLate_ || step % interval_ == 0; }
  /// All ranks call it together: whether an image of this step may begin. False, with a warning,
  /// while an earlier one is not complete on each rank and at its neighbour, or while the arena
  /// `host` of some rank is not free.
  Result<bool> mayBegin(int64_t step, bool isHostFree);
  /// Begins the image of a step, whose copies into the arena `host` are queued.
  void begin(int64_t step);
  /// The step whose state the current image waits for; nothing if it waits for none.
  std::optional<int64_t> awaitedStep();
  void setProgress(const Progress &progress);
  /// Waits until the arena `host` may be written again. Not while a step's state is awaited.
  void awaitCopied();
  bool areAwaited() const { return options_.areAwaited; }
  /// All ranks call it together: waits until each has completed its image, and its neighbour too.
  Status awaitKept();

private:
  struct Phase {
    const plan::Plan *plan;
    StateLayout layout;
    std::vector<SnapshotPiece> pieces;
    std::optional<ImageLayout> images; ///< of this layout
  };
  struct Task {
    int64_t step = 0;
    std::optional<Progress> progress;
    int64_t endedNs = 0;
    bool isCopied = false, isCancelled = false;
  };
  class Reader;

  MemorySaves(hal::Peers &peers, MemoryOptions options);
  Status meet();
  std::string introduction() const;
  Status takeIntroductions(const std::vector<std::string> &all);
  std::vector<ImageId> idsHeld() const;
  Result<std::vector<std::vector<int>>> findDamaged(const ImageChoice &choice);
  Result<std::optional<ImageChoice>> choose(int64_t newerThan);
  void keepOnly(const std::optional<ImageChoice> &choice) const;
  /// The position of the job when the images were made.
  struct Position {
    int64_t phase = 0, endedNs = 0;
    Progress progress;
  };
  Result<Position> positionIn(const Reader &images, const ImageChoice &choice) const;
  Result<const plan::Plan *> planOf(const ImageChoice &choice, int64_t phase) const;
  Result<Position> sharePosition(Result<Position> mine);
  Result<MemoryState> read(const ImageChoice &choice);
  std::string whose(const ImageChoice &choice) const;

  void passOver(int64_t step, std::string_view why);
  void strike();
  void run();
  Status keep(std::unique_lock<std::mutex> &lock);
  bool awaitState(std::unique_lock<std::mutex> &lock);
  Result<int> copy(const Task &task);
  Status send(int slot);

  hal::Peers &peers_;
  MemoryOptions options_;
  std::deque<Phase> phases_;
  int64_t interval_ = 1;
  HeldImages held_;
  std::unique_ptr<ImageServer> server_;
  std::vector<ImageAddress> addresses_;          ///< by rank
  std::vector<std::vector<ImageId>> heldByRank_; ///< at the beginning
  int neighbour_ = -1;

  // Used by the run's thread alone:
  int64_t newest_ = -1; ///< step of the last image that all ranks have completed
  int64_t begun_ = -1;  ///< of the image that was begun last
  bool isLate_ = false; ///< a step was skipped
  bool hasReportedFailure_ = false;

  std::mutex mutex_; ///< for all below
  std::condition_variable changed_;
  std::optional<Task> task_;
  Status outcome_; ///< of the last image
  exec::Executable *executable_ = nullptr;
  size_t phase_ = 0;
  bool isEnding_ = false;
  std::unique_ptr<ImageLink> link_; ///< to the neighbour
  std::thread thread_;
};

} // namespace shardc::save
