// Writes one checkpoint of a run: objects first, then rows of parameters and moments in the order
// in which they arrive, from the device or from a snapshot in host memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/HfFiles.h"
#include "runtime/save/FormatWriter.h"
#include "runtime/save/SnapshotPieces.h"

namespace shardc::save {

/// Data that all saves of a run share. It must outlive the writers.
struct SaveJob {
  const plan::Plan *plan = nullptr;
  const StateLayout *layout = nullptr;
  std::unique_ptr<FormatWriter> format;
  bool savesOptimizer = true;
  /// If set, counts the threads that are writing or removing files.
  std::atomic<int> *writers = nullptr;
  checkpoint::Observers observers; ///< observers of file operations
  int64_t attempt = 0;             ///< number of the start of the job's ranks
  /// Files of a Hugging Face model, from the checkpoint with which the run started.
  std::vector<checkpoint::HfModelFile> modelFiles = {};
  std::string baseRecord; ///< BaseWeights::record of the adapters' base

  static Result<SaveJob> of(const plan::Plan &plan, const StateLayout &layout);
  /// The target of the save after this step.
  checkpoint::SaveTarget target(const std::string &root, int64_t step) const {
    auto target = checkpoint::SaveTarget::iteration(root, step, observers);
    target.attempt = attempt;
    return target;
  }
};

/// Marks that the current thread writes files, as long as it lives. Writing may take long without
/// being a stall.
class Writing {
public:
  explicit Writing(const SaveJob &job) : writers_(job.writers) {
    if (writers_)
      ++*writers_;
  }
  ~Writing() {
    if (writers_)
      --*writers_;
  }
  Writing(const Writing &) = delete;
  Writing &operator=(const Writing &) = delete;

private:
  std::atomic<int> *writers_;
};

/// Writes one rank's file.
class RankSave {
public:
  /// Creates the file; on rank 0, also writes the objects.
  static Result<RankSave> begin(const SaveJob &job, const checkpoint::SaveTarget &target,
                                int worldRank, const Progress &progress);

  /// The pieces that this rank saves, sorted by cell and position in the cell.
  const std::vector<StatePiece> &pieces() const { return pieces_; }
  /// Adds bytes of a piece, in the form of StateLayout::bytesOf. The bytes of each piece, and of
  /// each cell, must be added in order. Complete rows are written at once; the rest of a row is
  /// kept until the next bytes of its cell arrive.
  Status add(const StatePiece &piece, int64_t from, const uint8_t *data, int64_t bytes);
  /// Adds the parts of pieces that these bytes of a cell contain. Remainders must be added after
  /// their weights, whose memory must stay valid until then.
  Status addCell(uint32_t cell, int64_t byteBegin, const uint8_t *data, int64_t bytes);
  Status finish() { return writer_.finish(); }
  int64_t bytesWritten() const { return bytesWritten_; }

private:
  RankSave(const SaveJob &job, checkpoint::RankWriter writer)
      : job_(&job), writer_(std::move(writer)) {}
  /// A range of a cell's bytes.
  struct Stretch {
    int64_t begin = 0, bytes = 0;
    const uint8_t *data = nullptr;
  };
  Status addHalves(const StatePiece &piece, int64_t begin, const uint8_t *lower, int64_t bytes);
  Status addRows(const StatePiece &piece, int64_t row, int64_t rows, const uint8_t *data);

  const SaveJob *job_;
  checkpoint::RankWriter writer_;
  std::vector<StatePiece> pieces_;
  /// For each cell, the beginning of a row whose rest has not arrived yet.
  std::map<uint32_t, std::vector<uint8_t>> begunRows_;
  std::map<uint32_t, std::vector<Stretch>> upperHalves_; ///< by cell, bytes that have arrived
  int64_t bytesWritten_ = 0;
};

/// Writes files other than those of ranks, commits the save, and then writes the Hugging Face copy
/// to the checkpoint's folder `hf` if the recipe requests one. `copied` receives the result of that
/// copy.
Status commitRun(const SaveJob &job, const checkpoint::SaveTarget &target, const Progress &progress,
                 Status &copied);

} // namespace shardc::save
