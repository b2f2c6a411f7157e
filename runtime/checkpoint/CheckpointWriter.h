// Writes a DCP checkpoint. Every rank writes its own file, then one rank writes the metadata, all
// in a hidden folder. One rename turns this folder into the checkpoint; the tracker file is written
// last. A crash at any time leaves the previous checkpoints intact; recoverInterrupted removes the
// leftovers.
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
/// until the rank has written it.
struct TensorSlice {
  std::string name;
  Element dtype = Element::F32;
  Shape globalShape; ///< shape of the whole tensor
  Box box;
  const void *data = nullptr;
  ItemPath path = {}; ///< in the nested state dict; empty: one segment, the name
  /// Alternative to `data`: produces the box's bytes in parts, so that they are never in memory
  /// together.
  GiveBytes give = {};
};

/// An object that this rank saves, as the bytes of a torch archive. objectItem creates one.
struct BytesItem {
  std::string name;
  std::string record;
  ItemPath path = {};
};

/// The destination of a save: `root/folder`. A hidden folder in `root` is renamed to it.
struct SaveTarget {
  std::string root;
  std::string folder;
  std::string trackerText = {}; ///< text of the tracker file after the save; empty: no file
  Observers observers = {};
  /// Number of the job's start that saves. Processes of an earlier start write to another folder.
  int64_t attempt = 0;

  /// The target `iter_0000100` (or another iteration) in `root`, with the tracker.
  static SaveTarget iteration(const std::string &root, int64_t iteration,
                              const Observers &observers = {});
  std::string path() const { return root + "/" + folder; }
  /// The folder that contains all staging folders of this checkpoint. It is removed together with
  /// everything that interrupted saves have left in it.
  std::string stagingRoot() const { return root + "/." + folder + ".saving"; }
  std::string stagingPath() const {
    return attempt == 0 ? stagingRoot() : stagingRoot() + "/" + std::to_string(attempt);
  }
};

/// Step 1, on one rank and before the others start: creates an empty staging folder.
Status beginSave(const SaveTarget &target);
/// Step 2, on every rank: writes the rank's data file `__<rank>_0.distcp` item by item, so that at
/// most one item must be in memory. Move-only.
class RankWriter {
public:
  /// `bytesExpected` is the approximate size of the file, or 0 if unknown. It only helps the file
  /// system.
  static Result<RankWriter> begin(const SaveTarget &target, int rank, uint64_t bytesExpected = 0);
  RankWriter(RankWriter &&) noexcept;
  RankWriter &operator=(RankWriter &&) noexcept;
  ~RankWriter();

  Status add(const BytesItem &item);
  /// Adds a slice. A slice without elements only declares the tensor. InvalidInput if the slice is
  /// not inside its tensor, or if an earlier slice gave the tensor another type or shape.
  Status add(const TensorSlice &slice);
  /// Syncs the file, and writes the facts that commitSave needs.
  Status finish();

private:
  struct State;
  explicit RankWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};
/// Executes all of step 2 in one call, for state that is already in memory.
Status writeRank(const SaveTarget &target, int rank, std::span<const TensorSlice> slices,
                 std::span<const BytesItem> items);
/// Adds another file to the checkpoint's folder or a subfolder. Any rank may call it before step 3.
Status addFile(const SaveTarget &target, const std::string &name, std::string_view contents);
/// Step 3, on one rank, after all ranks have written: checks that the slices of all ranks form
/// complete tensors, writes the metadata, renames the folder and writes the tracker. If two ranks
/// saved the same slice (same name and offset), that of the lower rank is used.
Status commitSave(const SaveTarget &target, int worldSize);
/// Removes the staging folder of a save that will not be committed.
Status abandonSave(const SaveTarget &target);

/// Executes all steps; called on every rank. `barrier(status)` returns on all ranks after all have
/// called it. Its status is ok only if every rank passed an ok status. It may be empty if
/// `worldSize` is 1.
Status save(const SaveTarget &target, int rank, int worldSize, std::span<const TensorSlice> slices,
            std::span<const BytesItem> items, const std::function<Status(Status)> &barrier = {});

/// The rows that `rank` saves of a tensor that all ranks have, so that they share the work evenly.
struct RowRange {
  int64_t begin = 0, end = 0;
};
/// Rows are divided as evenly as possible; the first ranks have one more.
RowRange shareOfRows(int64_t rows, int rank, int worldSize);

/// The file that names the newest checkpoint of a folder.
inline constexpr const char *kTrackerFile = "latest_checkpointed_iteration.txt";

/// A checkpoint in a folder of checkpoints.
struct SavedIteration {
  int64_t iteration = 0;
  std::string folder; ///< path of its folder
};
/// The number of a name `iter_<digits>`; nothing for other names.
std::optional<int64_t> iterationOf(std::string_view name);
/// Whether a folder name is that of a checkpoint: `iter_<digits>` or `release`.
bool isCheckpointName(std::string_view name);
/// All complete checkpoints `iter_*`, sorted by iteration.
Result<std::vector<SavedIteration>> listIterations(const std::string &root);
/// The iteration that the tracker names, or without a tracker the newest complete one. Nothing if
/// there is no checkpoint. NotFound if the tracker names a checkpoint that does not exist.
Result<std::optional<SavedIteration>> latestIteration(const std::string &root);
/// Removes leftovers of interrupted saves and removals, and restores a checkpoint that was moved
/// away for a replacement. Files and folders that saves do not create are kept. The caller must
/// hold the folder's lock. `emit` receives what was done.
Status recoverInterrupted(const std::string &root, const ReportSink &emit,
                          const Observers &observers = {});
/// Removes all but the newest `keep` checkpoints. The one that the tracker names is always kept.
Status removeOldIterations(const std::string &root, int keep, const Observers &observers = {},
                           int64_t retain = 0);

} // namespace shardc::checkpoint
