// Writes one checkpoint of a run: objects, then rows of parameters and moments in the order in
// which they arrive, from the device or from a snapshot in host memory.
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

/// The data that all checkpoints of a run share. Outlives the writers.
struct SaveJob {
  const plan::Plan *plan = nullptr;
  const StateLayout *layout = nullptr;
  std::unique_ptr<FormatWriter> format;
  bool savesOptimizer = true;
  /// Set: counts the threads that are writing files, or removing some.
  std::atomic<int> *writers = nullptr;
  checkpoint::Observers observers; ///< of the files
  int64_t attempt = 0;             ///< which start of the job's ranks it is
  /// Files of a Hugging Face model, from the checkpoint with which the run began.
  std::vector<checkpoint::HfModelFile> modelFiles = {};
  std::string baseRecord; ///< BaseWeights::record of the weights that adapters are for

  static Result<SaveJob> of(const plan::Plan &plan, const StateLayout &layout);
  /// The folder of the save after this step.
  checkpoint::SaveTarget target(const std::string &root, int64_t step) const {
    auto target = checkpoint::SaveTarget::iteration(root, step, observers);
    target.attempt = attempt;
    return target;
  }
};

/// The thread is writing files while this lives: that may take long, and is not a standstill.
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

/// One rank's file.
class RankSave {
public:
  /// Makes the file, with the objects on rank 0.
  static Result<RankSave> begin(const SaveJob &job, const checkpoint::SaveTarget &target,
                                int worldRank, const Progress &progress);

  /// The pieces that this rank saves, by cell and place in it.
  const std::vector<StatePiece> &pieces() const { return pieces_; }
  /// Adds bytes of a piece, as StateLayout::bytesOf counts them. The bytes of a piece and of a cell
  /// come from the beginning to the end.
  /// Writes as many rows as are complete; the rest of a row is kept until the next bytes of its
  /// cell.
  Status add(const StatePiece &piece, int64_t from, const uint8_t *data, int64_t bytes);
  /// Adds the parts of pieces in these bytes of a cell. Remainders come after the bytes of their
  /// weights, which stay in place until then.
  Status addCell(uint32_t cell, int64_t byteBegin, const uint8_t *data, int64_t bytes);
  Status finish() { return writer_.finish(); }
  int64_t bytesWritten() const { return bytesWritten_; }

private:
  RankSave(const SaveJob &job, checkpoint::RankWriter writer)
      : job_(&job), writer_(std::move(writer)) {}
  /// Bytes of a cell.
  struct Stretch {
    int64_t begin = 0, bytes = 0;
    const uint8_t *data = nullptr;
  };
  Status addHalves(const StatePiece &piece, int64_t begin, const uint8_t *lower, int64_t bytes);
  Status addRows(const StatePiece &piece, int64_t row, int64_t rows, const uint8_t *data);

  const SaveJob *job_;
  checkpoint::RankWriter writer_;
  std::vector<StatePiece> pieces_;
  /// For each cell, the beginning of a row whose rest has not come yet.
  std::map<uint32_t, std::vector<uint8_t>> begunRows_;
  std::map<uint32_t, std::vector<Stretch>> upperHalves_; ///< by cell, what has come
  int64_t bytesWritten_ = 0;
};

/// Writes the files beside the ranks', commits, and then writes the Hugging Face copy in the
/// checkpoint's folder `hf` if the recipe requests it; `copied` receives the result.
Status commitRun(const SaveJob &job, const checkpoint::SaveTarget &target, const Progress &progress,
                 Status &copied);

} // namespace shardc::save
