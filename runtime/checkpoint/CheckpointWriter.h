// Writes a DCP checkpoint: every rank its own file, then one rank the metadata, all in a hidden
// folder that becomes the checkpoint with one rename, and the tracker file last. A crash at any
// moment leaves the previous state; recoverInterrupted removes the rest.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A box of a tensor that this rank saves. `data` is dense in the box's shape and must stay valid
/// until the rank has written.
struct TensorSlice {
  std::string name;
  Element dtype = Element::F32;
  Shape globalShape; ///< of the tensor
  Box box;
  const void *data = nullptr;
  ItemPath path = {}; ///< in the nested state dict; one segment, the name, if empty
  /// Gives the box's bytes in parts, in place of `data`, so that they are never all in memory.
  GiveBytes give = {};
};

/// An object that this rank saves, as the bytes of a torch archive (objectItem makes one).
struct BytesItem {
  std::string name;
  std::string record;
  ItemPath path = {};
};

/// The destination of a save: `root/folder`, renamed from a hidden folder in `root`.
struct SaveTarget {
  std::string root;
  std::string folder;
  std::string trackerText = {}; ///< what the tracker file says afterwards; none is written if empty
  Observers observers = {};
  /// The attempt of the job that saves. What is left of an earlier attempt writes elsewhere.
  int64_t attempt = 0;

  /// `iter_0000100` under `root`, with the tracker.
  static SaveTarget iteration(const std::string &root, int64_t iteration,
                              const Observers &observers = {});
  std::string path() const { return root + "/" + folder; }
  /// The root of the staging folders of this checkpoint, which is removed with everything that
  /// interrupted saves have left.
  std::string stagingRoot() const { return root + "/." + folder + ".saving"; }
  std::string stagingPath() const {
    return attempt == 0 ? stagingRoot() : stagingRoot() + "/" + std::to_string(attempt);
  }
};

/// Step 1, one rank, before the others start: an empty staging folder.
Status beginSave(const SaveTarget &target);
/// Step 2, every rank: a rank's data file `__<rank>_0.distcp`, item by item, so that no more than
/// one needs to be in memory. Move-only.
class RankWriter {
public:
  /// `bytesExpected` is about how much will come, 0 if that is not known; it only helps the disk.
  static Result<RankWriter> begin(const SaveTarget &target, int rank, uint64_t bytesExpected = 0);
  RankWriter(RankWriter &&) noexcept;
  RankWriter &operator=(RankWriter &&) noexcept;
  ~RankWriter();

  Status add(const BytesItem &item);
  /// A slice without elements only makes the tensor known. InvalidInput if the slice is not inside
  /// its tensor, or the tensor has another type or shape than in a slice before.
  Status add(const TensorSlice &slice);
  /// Syncs the file, and records the facts that commitSave needs.
  Status finish();

private:
  struct State;
  explicit RankWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};
/// All of step 2 in one call, for state that is in memory anyway.
Status writeRank(const SaveTarget &target, int rank, std::span<const TensorSlice> slices,
                 std::span<const BytesItem> items);
/// Any rank, before step 3: a further file in the checkpoint's folder, or in one in it.
Status addFile(const SaveTarget &target, const std::string &name, std::string_view contents);
/// Step 3, one rank, after all have written: checks that the slices of all ranks add up to complete
/// tensors, writes the metadata, puts the folder in place and writes the tracker. What two ranks
/// saved alike (same name and offset) is taken from the lower rank.
Status commitSave(const SaveTarget &target, int worldSize);
/// Removes the staging folder of a save that will not be committed.
Status abandonSave(const SaveTarget &target);

/// All steps, called on every rank. `barrier(status)` returns on all ranks once all have come, with
/// a status that is ok only if every rank's was; it may be empty if `worldSize` is 1.
Status save(const SaveTarget &target, int rank, int worldSize, std::span<const TensorSlice> slices,
            std::span<const BytesItem> items, const std::function<Status(Status)> &barrier = {});

/// Rows that `rank` should save of a tensor that all ranks hold, so that the work is shared evenly.
struct RowRange {
  int64_t begin = 0, end = 0;
};
RowRange shareOfRows(int64_t rows, int rank, int worldSize);

/// Says which checkpoint of a folder is the newest.
inline constexpr const char *kTrackerFile = "latest_checkpointed_iteration.txt";

/// What a folder of checkpoints holds.
struct SavedIteration {
  int64_t iteration = 0;
  std::string folder; ///< its path
};
/// The number in `iter_<digits>`.
std::optional<int64_t> iterationOf(std::string_view name);
/// Whether a checkpoint's folder is called that: `iter_<digits>` or `release`.
bool isCheckpointName(std::string_view name);
/// All complete checkpoints `iter_*`, ascending.
Result<std::vector<SavedIteration>> listIterations(const std::string &root);
/// The iteration that the tracker names, or the newest complete one without a tracker; nothing if
/// there is no checkpoint. NotFound if the tracker names one that is missing.
Result<std::optional<SavedIteration>> latestIteration(const std::string &root);
/// Removes leftovers of interrupted saves and removals, and restores a checkpoint that a
/// replacement had moved away; files and folders that no save creates stay. For the holder of the
/// folder's lock. `emit` receives what was done.
Status recoverInterrupted(const std::string &root, const ReportSink &emit,
                          const Observers &observers = {});
/// Removes all but the newest `keep` checkpoints, never the one that the tracker names.
Status removeOldIterations(const std::string &root, int keep, const Observers &observers = {},
                           int64_t retain = 0);

} // namespace shardc::checkpoint
