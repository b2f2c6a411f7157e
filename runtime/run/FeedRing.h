// A ring of microbatches in a host cell of every rank. The host writes entries ahead of the ops
// that copy them, and waits only if the ring is full.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

/// The number of sequences, and of tokens in each, that a segment's batch.load reads; zeros without
/// one.
struct BatchSize {
  int64_t batch = 0, sequence = 0;
  int16_t slices = -1; ///< group whose ranks have slices of the sequences; -1: none
  FeedMore more = FeedMore::None;
  static BatchSize of(const plan::Segment &segment);
};

class FeedRing {
public:
  /// Creates the ring in a cell that batch.load ops of segment number `segment` read. InvalidInput
  /// if its entries do not have the size of a batch.
  static Result<FeedRing> create(exec::Executable &executable, uint32_t segment, uint32_t cell,
                                 FeedKind kind);

  /// Blocks until the entry's slot is free on all ranks.
  Status waitForSlot(int64_t visit, int64_t microbatch, int64_t microbatches);
  /// Writes the entry for the next launch, on all ranks, to a free slot. `visit` counts from the
  /// start of this process, `jobVisit` from the start of the job.
  Status write(BatchSource &source, int64_t visit, int64_t jobVisit, int64_t microbatch,
               int64_t microbatches);
  /// Call it after enqueuing the launch that reads the entry.
  Status markQueued(int64_t visit, int64_t microbatch, int64_t microbatches);

  FeedKind kind() const { return kind_; }

private:
  struct RankRing {
    size_t rank;
    int64_t dataIndex;
    SequenceSlice slice;
    int32_t *words;
    std::vector<std::unique_ptr<hal::Event>> consumed; ///< by slot
  };

  exec::Executable *executable_ = nullptr;
  FeedKind kind_ = FeedKind::Train;
  int64_t slots_ = 0, wordsPerEntry_ = 0;
  BatchSize size_;
  std::vector<RankRing> ranks_;
};

} // namespace shardc::run
