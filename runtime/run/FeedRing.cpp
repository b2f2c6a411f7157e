// An entry is one microbatch: arrays of batch x sequence 32-bit words for tokens, labels, loss
// mask, positions and documents, one after the other, then the number of each row's sample. An
// event per slot says when the device has consumed it.
#include "runtime/run/FeedRing.h"

#include "runtime/base/BatchFields.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"

namespace shardc::run {
FeedEntry FeedEntry::at(int32_t *words, int64_t batch, int64_t sequence, FeedMore more) {
  int64_t n = batch * sequence;
  FeedEntry entry;
  entry.batch = batch;
  entry.sequence = sequence;
  entry.tokens = words;
  entry.labels = words + n;
  entry.mask = reinterpret_cast<float *>(words + 2 * n);
  entry.positions = words + 3 * n;
  entry.docs = words + 4 * n;
  entry.samples = reinterpret_cast<uint8_t *>(words + 5 * n);
  int32_t *last = words + 5 * n + 2 * batch;
  if (more == FeedMore::Places)
    entry.places = last;
  if (more == FeedMore::Reference)
    entry.reference = reinterpret_cast<float *>(last);
  return entry;
}

BatchSize BatchSize::of(const plan::Segment &segment) {
  for (const plan::Op &op : segment.ops)
    if (op.kind == plan::OpKind::BatchLoad && !op.results.empty()) {
      const plan::Type &tokens = segment.values[op.results[0]].type;
      if (tokens.rank != 2)
        return {};
      return {tokens.shape[0], tokens.shape[1], op.group,
              op.results.size() <= batch::Places ? FeedMore::None
              : op.group >= 0                    ? FeedMore::Places
                                                 : FeedMore::Reference};
    }
  return {};
}

Result<FeedRing> FeedRing::create(exec::Executable &executable, uint32_t segment, uint32_t cell,
                                  FeedKind kind) {
  const plan::Cell &feed = executable.roleOfSegment(segment).cells[cell];
  FeedRing ring;
  ring.executable_ = &executable;
  ring.kind_ = kind;
  const BatchSize size = ring.size_ = BatchSize::of(executable.segment(segment));
  bool isRing =
      feed.type.dtype == DType::I32 && feed.type.rank == 2 && feed.arena == plan::Arena::Host;
  if (!isRing || feed.type.shape[0] < 1 || size.batch < 1 ||
      feed.type.shape[1] != FeedEntry::words(size.batch, size.sequence, size.more))
    return makeStatus(report::PlanCannotRun,
                      "@{} is not a ring of batches of {} x {} tokens in the host arena", feed.name,
                      size.batch, size.sequence);
  ring.slots_ = feed.type.shape[0];
  ring.wordsPerEntry_ = feed.type.shape[1];
  for (size_t r : executable.ranksOf(segment)) {
    const exec::Arenas &arenas = executable.arenas(r);
    ASSIGN_OR_RETURN(uint8_t * base,
                     arenas.resolve(feed.place, feed.type.bytes(), "@" + feed.name));
    RankRing rank{r,
                  exec::indexIn(executable.plan(),
                                plan::groupOfKind(executable.plan(), plan::GroupKind::Data),
                                executable.worldRank(r)),
                  {exec::indexIn(executable.plan(), size.slices, executable.worldRank(r)),
                   executable.plan().groupSize(size.slices)},
                  reinterpret_cast<int32_t *>(base),
                  {}};
    for (int64_t slot = 0; slot < ring.slots_; ++slot) {
      ASSIGN_OR_RETURN(auto event, executable.device(r).createEvent());
      rank.consumed.push_back(std::move(event));
    }
    ring.ranks_.push_back(std::move(rank));
  }
  return ring;
}

Status FeedRing::waitForSlot(int64_t visit, int64_t microbatch, int64_t microbatches) {
  int64_t slot = (visit * microbatches + microbatch) % slots_;
  for (RankRing &rank : ranks_)
    RETURN_IF_ERROR(rank.consumed[slot]->synchronize());
  return Status::ok();
}

Status FeedRing::write(BatchSource &source, int64_t visit, int64_t jobVisit, int64_t microbatch,
                       int64_t microbatches) {
  int64_t slot = (visit * microbatches + microbatch) % slots_;
  for (RankRing &rank : ranks_) {
    FeedEntry entry =
        FeedEntry::at(rank.words + slot * wordsPerEntry_, size_.batch, size_.sequence, size_.more);
    entry.slice = rank.slice;
    RETURN_IF_ERROR(source.fill(kind_, jobVisit, microbatch, microbatches, rank.dataIndex, entry));
  }
  return Status::ok();
}

Status FeedRing::markQueued(int64_t visit, int64_t microbatch, int64_t microbatches) {
  int64_t slot = (visit * microbatches + microbatch) % slots_;
  for (RankRing &rank : ranks_)
    RETURN_IF_ERROR(executable_->computeStream(rank.rank).record(*rank.consumed[slot]));
  return Status::ok();
}

} // namespace shardc::run
