// The null backend's record of its objects: which are alive, what uses them, and which queued work
// the caller may assume to have ended.
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
  void keep(Status breach);
  const Status &firstBreach() const { return first_; }

  /// An error if the backend was aborted or destroyed.
  Status checkOpen() const;
  /// Every later call is refused with Aborted.
  void abort() { isAborted_ = true; }
  /// Objects of the backend refer to it, so all must be destroyed before it.
  void end();

  /// Registers a buffer, which is alive until dropBlock(). That reports buffers that queued work or
  /// a channel may still use.
  std::shared_ptr<Block> addBlock(int rank, const uint8_t *data, int64_t bytes,
                                  hal::MemoryKind kind, std::string name);
  void dropBlock(const std::shared_ptr<Block> &block);
  /// The rank's buffer that contains the range. If there is none, an error with the reason, in
  /// which `what` names the purpose.
  Result<std::shared_ptr<Block>> find(int rank, const void *data, int64_t bytes,
                                      std::string_view what) const;

  /// Whether the caller may assume that all work in the clock has ended.
  bool isKnown(int rank, const Clock &clock) const;
  /// The rank's state, created at the first call.
  RankState &rankOf(int rank) { return ranks_[rank]; }
  /// The caller has waited for everything: all issued work of all ranks counts as ended.
  void knowAll();

  /// Pointers to the objects that were handed out and are not destroyed.
  void add(const void *object) { ++objects_[object]; }
  void drop(const void *object, std::string_view what);
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
