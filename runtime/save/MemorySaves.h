// Saves in memory (`checkpoint.in_memory_interval`). At each interval, background segments copy the
// state to arena `host`. A thread copies it from there to memory that outlives this process, and
// sends it to the neighbour that keeps a second copy. At a restart, all ranks choose the images
// from which they continue (ImageChoice.h). See docs/adr/0035-saves-in-memory.md.
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

/// Bytes of the largest image of a rank with one of these plans; 0 if they save none in memory.
/// PlanCannotRun if a plan copies its state in several pieces.
Result<int64_t> imageBytesMax(std::span<const plan::Plan> plans);

struct MemoryOptions {
  /// Memory for ImageSlots: of this rank, and of the rank whose neighbour it is. Empty without
  /// neighbours.
  std::span<uint8_t> own, guest;
  uint64_t planHash = 0;
  /// The plans for all numbers of ranks that the job may have. They must outlive the MemorySaves.
  std::span<const plan::Plan> plans;
  std::string machine;        ///< the machine on which this rank runs
  double timeoutSeconds = 60; ///< limit for a transfer without progress
  /// Receives reports on the calling thread. All ranks get the same reports.
  ReportSink emit;
  /// A test's fault: called with complete images of this rank, here and at the neighbour.
  std::function<void(int64_t step, std::span<uint8_t> image)> imageFault;
  /// For tests: whether steps wait for their images (run::Fault::awaitsKept).
  bool areAwaited = false;
};

/// The state from which a restart continues.
struct MemoryState {
  size_t phase = 0; ///< index of the plan
  Progress progress;
  std::unique_ptr<StateSource> source; ///< the MemorySaves must outlive it
  std::string whose;                   ///< text for messages
  double secondsLost = 0;              ///< since the end of the step
};

class MemorySaves {
public:
  /// Creates the object; all ranks call it together. Plans and peers must outlive it.
  static Result<std::unique_ptr<MemorySaves>> create(std::span<const plan::Plan> plans,
                                                     hal::Peers &peers, MemoryOptions options);
  ~MemorySaves();
  MemorySaves(const MemorySaves &) = delete;
  MemorySaves &operator=(const MemorySaves &) = delete;

  /// The newest state in memory after a step beyond `newerThan`. All ranks call it together after a
  /// restart, before any image is created. Images that are not chosen are removed.
  Result<std::optional<MemoryState>> restore(int64_t newerThan);

  /// Sets the executable whose state is copied from now on. No unfinished copy may exist.
  void attach(size_t phase, exec::Executable &executable);
  /// Stops using the executable. An image whose state has not arrived yet is abandoned.
  void release();

  /// Whether to save after this step: at each interval, and also after a save was skipped.
  bool isDue(int64_t step) const { return isLate_ || step % interval_ == 0; }
  /// Whether an image of this step may begin. All ranks call it together. False, with a warning, as
  /// long as an earlier image is incomplete on some rank or at its neighbour, or arena `host` of
  /// some rank is in use.
  Result<bool> mayBegin(int64_t step, bool isHostFree);
  /// Begins the image of a step. Its copies to arena `host` must be queued.
  void begin(int64_t step);
  /// The step whose state the current image waits for; nothing if no image waits.
  std::optional<int64_t> awaitedStep();
  void setProgress(const Progress &progress);
  /// Waits until arena `host` may be overwritten. Must not be called while an image waits for a
  /// step's state.
  void awaitCopied();
  bool areAwaited() const { return options_.areAwaited; }
  /// Waits until all ranks and their neighbours have complete images. All ranks call it together.
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
  /// The progress of the job when the images were created.
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
  std::vector<ImageAddress> addresses_; ///< by rank
  /// The images that each rank held at the last start.
  std::vector<std::vector<ImageId>> heldByRank_;
  int neighbour_ = -1;

  // Used by the run's thread only:
  int64_t newest_ = -1; ///< step of the last image that all ranks have completed
  int64_t begun_ = -1;  ///< step of the image that was begun last
  bool isLate_ = false; ///< whether a due step was skipped
  bool hasReportedFailure_ = false;

  std::mutex mutex_; ///< guards all members below
  std::condition_variable changed_;
  std::optional<Task> task_;
  Status outcome_; ///< outcome of the last image
  exec::Executable *executable_ = nullptr;
  size_t phase_ = 0;
  bool isEnding_ = false;
  std::unique_ptr<ImageLink> link_; ///< to the neighbour
  std::thread thread_;
};

} // namespace shardc::save
