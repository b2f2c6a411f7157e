// The null backend's record of its objects: which are alive, what uses them, and how much of the
// enqueued work the caller may assume to have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/hal/Backend.h"

namespace shardc::null {

/// How many pieces of work of each stream of a rank, by the stream's number, have ended or come
/// before.
class Clock {
public:
  int64_t of(size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  void set(size_t stream, int64_t count) {
    if (stream >= counts_.size())
      counts_.resize(stream + 1);
    counts_[stream] = count;
  }
  void join(const Clock &other) {
    for (size_t s = 0; s < other.counts_.size(); ++s)
      if (other.counts_[s] > of(s))
        set(s, other.counts_[s]);
  }
  /// Whether all that this clock counts is counted there too.
  bool isWithin(const Clock &other) const {
    for (size_t s = 0; s < counts_.size(); ++s)
      if (counts_[s] > other.of(s))
        return false;
    return true;
  }

private:
  std::vector<int64_t> counts_;
};

/// Something that queued work uses: it may go when the caller can know that the work has ended.
struct Used {
  int rank = 0;
  Clock lastUse;
  bool isAlive = true;
};

/// A buffer.
struct Block : Used {
  const uint8_t *data = nullptr;
  int64_t bytes = 0;
  hal::MemoryKind kind = hal::MemoryKind::Work;
  std::string name;
  int channels = 0; ///< that it is shared with
};

/// A hash of the collectives that a member has issued; equal sequences have equal hashes.
struct Issued {
  int64_t count = 0;
  uint64_t digest = 0;

  /// Appends one collective, or a sequence.
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

/// A channel's side of this process.
struct Line {
  std::string name;
  std::vector<int> members;
  std::map<int, Issued> issued; ///< by rank of this process
  std::map<int, Clock> lastUse; ///< too
  std::vector<std::shared_ptr<Block>> shared;
  int graphs = 0; ///< that captured its collectives
};

/// What a rank's streams share.
struct RankState {
  int rank = 0;
  std::vector<int64_t> issued; ///< pieces of work, by stream
  Clock known;                 ///< what the caller may take for ended
};

/// Threads may use it concurrently: every public function of the backend's objects takes the mutex.
class Ledger {
public:
  explicit Ledger(std::function<void(const Status &)> onBreach) : onBreach_(std::move(onBreach)) {}

  std::mutex mutex;
  /// Names the rank and what is wrong.
  template <typename... Args>
  static Status refuse(fmt::format_string<Args...> text, Args &&...args) {
    return Status(StatusCode::Internal,
                  "null backend: " + fmt::format(text, std::forward<Args>(args)...));
  }
  /// Keeps a breach that no destructor can return.
  void keep(Status breach);
  const Status &firstBreach() const { return first_; }

  /// Aborted or destroyed backends take no calls.
  Status checkOpen() const;
  void abort() { isAborted_ = true; }
  void end();

  std::shared_ptr<Block> addBlock(int rank, const uint8_t *data, int64_t bytes,
                                  hal::MemoryKind kind, std::string name);
  void dropBlock(const std::shared_ptr<Block> &block);
  /// The rank's buffer that contains the range; otherwise the reason why there is none, with the
  /// purpose.
  Result<std::shared_ptr<Block>> find(int rank, const void *data, int64_t bytes,
                                      std::string_view what) const;

  /// Whether the caller may take all work for ended that the clock counts.
  bool isKnown(int rank, const Clock &clock) const;
  RankState &rankOf(int rank) { return ranks_[rank]; }
  void knowAll();

  /// Pointers of objects that were handed out and not destroyed.
  void add(const void *object) { ++objects_[object]; }
  void drop(const void *object, std::string_view what);
  bool has(const void *object) const { return objects_.contains(object); }

  std::set<std::shared_ptr<Line>> lines; ///< of channels that are alive

private:
  std::function<void(const Status &)> onBreach_;
  Status first_;
  bool isAborted_ = false, isEnded_ = false;
  std::map<const uint8_t *, std::shared_ptr<Block>> blocks_; ///< by first byte
  std::map<int, RankState> ranks_;
  std::map<const void *, int> objects_;
};

} // namespace shardc::null
