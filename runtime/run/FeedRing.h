// A ring of microbatches in a host cell of every rank. The host writes entries ahead of the ops
// that copy them, and waits only if the ring is full.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

/// Number of sequences, and of tokens in each, that a segment's batch.load reads, or zeros.
struct BatchSize {
  int64_t batch = 0, sequence = 0;
  int16_t slices = -1; ///< the group whose ranks have slices of the sequences, if any
  FeedMore more = FeedMore::None;
  static BatchSize of(const plan::Segment &segment);
};

class FeedRing {
public:
  /// The ring in a cell that batch.load ops of `segment`, by its number, read. InvalidInput if its
  /// entries do not have the size of a batch.
  static Result<FeedRing> create(exec::Executable &executable, uint32_t segment, uint32_t cell,
                                 FeedKind kind);

  /// Blocks until the slot of an entry is free on all ranks.
  Status waitForSlot(int64_t visit, int64_t microbatch, int64_t microbatches);
  /// Writes the entry for the next launch, for all ranks, into a free slot. `visit` counts from the
  /// start of this process, `jobVisit` from the start of the job.
  Status write(BatchSource &source, int64_t visit, int64_t jobVisit, int64_t microbatch,
               int64_t microbatches);
  /// Call this after the launch that reads the entry was enqueued.
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
