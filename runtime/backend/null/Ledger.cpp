// Uses vector clocks: a rank's clock says how much of each of its streams' work the host knows to
// have ended.
#include "runtime/backend/null/Ledger.h"

#include <iterator>

namespace shardc::null {

void Ledger::keep(Status breach) {
  if (onBreach_)
    onBreach_(breach);
  if (first_.isOk())
    first_ = std::move(breach);
}

Status Ledger::checkOpen() const {
  if (isEnded_)
    return refuse("a call after the backend was destroyed");
  if (isAborted_)
    return Status(StatusCode::Aborted, "null backend: aborted");
  return Status::ok();
}

void Ledger::end() {
  isEnded_ = true;
  for (const auto &[data, block] : blocks_)
    keep(refuse("rank {}: buffer '{}' outlives the backend", block->rank, block->name));
  for (const std::shared_ptr<Line> &line : lines)
    keep(refuse("channel '{}' outlives the backend", line->name));
  if (!objects_.empty())
    keep(refuse("{} streams, events, marks or graphs outlive the backend", objects_.size()));
}

std::shared_ptr<Block> Ledger::addBlock(int rank, const uint8_t *data, int64_t bytes,
                                        hal::MemoryKind kind, std::string name) {
  auto block = std::make_shared<Block>();
  block->rank = rank;
  block->data = data;
  block->bytes = bytes;
  block->kind = kind;
  block->name = std::move(name);
  blocks_[data] = block;
  return block;
}

void Ledger::dropBlock(const std::shared_ptr<Block> &block) {
  block->isAlive = false;
  blocks_.erase(block->data);
  if (isEnded_)
    return; // already reported
  if (!isKnown(block->rank, block->lastUse))
    keep(refuse("rank {}: buffer '{}' is destroyed while queued work may still use it", block->rank,
                block->name));
  if (block->channels > 0)
    keep(refuse("rank {}: buffer '{}' is destroyed before {} channels that share it", block->rank,
                block->name, block->channels));
}

Result<std::shared_ptr<Block>> Ledger::find(int rank, const void *data, int64_t bytes,
                                            std::string_view what) const {
  auto *first = static_cast<const uint8_t *>(data);
  auto at = blocks_.upper_bound(first);
  std::shared_ptr<Block> block = at == blocks_.begin() ? nullptr : std::prev(at)->second;
  int64_t offset = block ? first - block->data : 0;
  if (bytes < 0)
    return refuse("rank {}: {} has {} bytes", rank, what, bytes);
  if (!block || offset > block->bytes)
    return refuse("rank {}: {} is in no buffer that is alive", rank, what);
  if (bytes > block->bytes - offset)
    return refuse("rank {}: {} takes bytes {} to {} of buffer '{}', which has {}", rank, what,
                  offset, offset + bytes, block->name, block->bytes);
  if (block->rank != rank)
    return refuse("rank {}: {} is in buffer '{}' of rank {}", rank, what, block->name, block->rank);
  return block;
}

bool Ledger::isKnown(int rank, const Clock &clock) const {
  auto at = ranks_.find(rank);
  return at == ranks_.end() || clock.isWithin(at->second.known);
}

void Ledger::knowAll() {
  for (auto &[rank, state] : ranks_)
    for (size_t s = 0; s < state.issued.size(); ++s)
      state.known.set(s, state.issued[s]);
}

void Ledger::drop(const void *object, std::string_view what) {
  auto at = objects_.find(object);
  if (at == objects_.end())
    return keep(refuse("{} is destroyed twice", what));
  objects_.erase(at);
}

} // namespace shardc::null
