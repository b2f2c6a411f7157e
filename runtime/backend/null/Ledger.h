// The null backend's record of its objects: which are alive, what uses them, and which queued work
// the caller may assume to have ended. Uses vector clocks: a rank's clock says how much of each of
// its streams' work the host knows to have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/hal/Backend.h"

namespace shardc::null {

/// A vector clock of one rank: for each stream, by number, how many pieces of its work have ended
/// or are ordered before.
class Clock {
public:
  int64_t of(size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  /// Sets one entry; entries that were never set are 0.
  void set(size_t stream, int64_t count) {
    if (stream >= counts_.size())
      counts_.resize(stream + 1);
    counts_[stream] = count;
  }
  /// The element-wise maximum of both clocks.
  void join(const Clock &other) {
    for (size_t s = 0; s < other.counts_.size(); ++s)
      if (other.counts_[s] > of(s))
        set(s, other.counts_[s]);
  }
  /// Whether the other clock contains everything that this one contains.
  bool isWithin(const Clock &other) const {
    for (size_t s = 0; s < counts_.size(); ++s)
      if (counts_[s] > other.of(s))
        return false;
    return true;
  }

private:
  std::vector<int64_t> counts_;
};

/// An object that queued work uses. It may be destroyed once the caller can know that the work has
/// ended.
struct Used {
  int rank = 0;
  Clock lastUse;
  bool isAlive = true;
};

/// A buffer of one rank.
struct Block : Used {
  const uint8_t *data = nullptr;
  int64_t bytes = 0;
  hal::MemoryKind kind = hal::MemoryKind::Work;
  std::string name;
  int channels = 0; ///< number of channels that share it
};

/// A hash of the collectives that a member has issued; equal sequences have equal hashes.
struct Issued {
  int64_t count = 0;
  uint64_t digest = 0;

  /// Appends one collective or a sequence of collectives.
  void add(const Issued &next) {
    uint64_t factor = 1, power = kFactor;
    for (int64_t n = next.count; n > 0; n /= 2, power *= power)
      factor *= n % 2 ? power : 1;
    digest = digest * factor + next.digest;
    count += next.count;
  }
  bool operator==(const Issued &) const = default;

private:
  static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
};

/// A channel, as far as this process takes part in it.
struct Line {
  std::string name;
  std::vector<int> members;
  std::map<int, Issued> issued; ///< by rank in this process
  std::map<int, Clock> lastUse; ///< by rank in this process
  std::vector<std::shared_ptr<Block>> shared;
  int graphs = 0; ///< number of graphs that captured its collectives
};

/// State that a rank's streams share.
struct RankState {
  int rank = 0;
  std::vector<int64_t> issued; ///< number of pieces of work, by stream
  Clock known;                 ///< the work that the caller may assume to have ended
};

/// Several threads may use it: every public function of the backend's objects locks the mutex.
class Ledger {
public:
  explicit Ledger(std::function<void(const Status &)> onBreach) : onBreach_(std::move(onBreach)) {}

  std::mutex mutex;
  /// Creates the status of a violation. The text names the rank and the violation.
  template <typename... Args>
  static Status refuse(fmt::format_string<Args...> text, Args &&...args) {
    return Status(StatusCode::Internal,
                  "null backend: " + fmt::format(text, std::forward<Args>(args)...));
  }
  /// Records a violation in a destructor, which cannot return it.
  void keep(Status breach) {
    if (onBreach_)
      onBreach_(breach);
    if (first_.isOk())
      first_ = std::move(breach);
  }

  const Status &firstBreach() const { return first_; }

  /// An error if the backend was aborted or destroyed.
  Status checkOpen() const {
    if (isEnded_)
      return refuse("a call after the backend was destroyed");
    if (isAborted_)
      return Status(StatusCode::Aborted, "null backend: aborted");
    return Status::ok();
  }

  /// Every later call is refused with Aborted.
  void abort() { isAborted_ = true; }
  /// Objects of the backend refer to it, so all must be destroyed before it.
  void end() {
    isEnded_ = true;
    for (const auto &[data, block] : blocks_)
      keep(refuse("rank {}: buffer '{}' outlives the backend", block->rank, block->name));
    for (const std::shared_ptr<Line> &line : lines)
      keep(refuse("channel '{}' outlives the backend", line->name));
    if (!objects_.empty())
      keep(refuse("{} streams, events, marks or graphs outlive the backend", objects_.size()));
  }

  /// Registers a buffer, which is alive until dropBlock(). That reports buffers that queued work or
  /// a channel may still use.
  std::shared_ptr<Block> addBlock(int rank, const uint8_t *data, int64_t bytes,
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

  void dropBlock(const std::shared_ptr<Block> &block) {
    block->isAlive = false;
    blocks_.erase(block->data);
    if (isEnded_)
      return; // already reported
    if (!isKnown(block->rank, block->lastUse))
      keep(refuse("rank {}: buffer '{}' is destroyed while queued work may still use it",
                  block->rank, block->name));
    if (block->channels > 0)
      keep(refuse("rank {}: buffer '{}' is destroyed before {} channels that share it", block->rank,
                  block->name, block->channels));
  }

  /// The rank's buffer that contains the range. If there is none, an error with the reason, in
  /// which `what` names the purpose.
  Result<std::shared_ptr<Block>> find(int rank, const void *data, int64_t bytes,
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
      return refuse("rank {}: {} is in buffer '{}' of rank {}", rank, what, block->name,
                    block->rank);
    return block;
  }

  /// Whether the caller may assume that all work in the clock has ended.
  bool isKnown(int rank, const Clock &clock) const {
    auto at = ranks_.find(rank);
    return at == ranks_.end() || clock.isWithin(at->second.known);
  }

  /// The rank's state, created at the first call.
  RankState &rankOf(int rank) { return ranks_[rank]; }
  /// The caller has waited for everything: all issued work of all ranks counts as ended.
  void knowAll() {
    for (auto &[rank, state] : ranks_)
      for (size_t s = 0; s < state.issued.size(); ++s)
        state.known.set(s, state.issued[s]);
  }

  /// Pointers to the objects that were handed out and are not destroyed.
  void add(const void *object) { ++objects_[object]; }
  void drop(const void *object, std::string_view what) {
    auto at = objects_.find(object);
    if (at == objects_.end())
      return keep(refuse("{} is destroyed twice", what));
    objects_.erase(at);
  }

  bool has(const void *object) const { return objects_.contains(object); }

  std::set<std::shared_ptr<Line>> lines; ///< lines of live channels

private:
  std::function<void(const Status &)> onBreach_;
  Status first_;
  bool isAborted_ = false, isEnded_ = false;
  std::map<const uint8_t *, std::shared_ptr<Block>> blocks_; ///< by address of the first byte
  std::map<int, RankState> ranks_;
  std::map<const void *, int> objects_;
};

} // namespace shardc::null
