// The current exchanges between ranks of a job. Each member of a group contributes a part, and
// receives the parts that it requested. A group waits only for its own members.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/hal/Peers.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// A rank's contribution to an exchange, as the body of a Gather.
struct GatherPart {
  std::string key;
  hal::Peers::Fold fold = hal::Peers::Fold::Parts;
  std::vector<int> members; ///< in order; empty: all ranks
  std::string bytes;

  /// All members must be below `ranks`, and none may occur twice.
  static void fields(auto &io, auto &it, int64_t ranks) {
    io.field(it.key);
    io.field(it.fold, hal::Peers::Fold::kLast);
    io.ranks(it.members, ranks);
    io.field(it.bytes);
    io.check(it.bytes.size() <= kBlobBytesMax);
  }
};

class Exchange {
public:
  explicit Exchange(int64_t ranks)
      : inside_(static_cast<size_t>(ranks)), awaited_(static_cast<size_t>(ranks)) {}

  /// Adds a rank's part. Returns false if the rank is not a member, or is already in an exchange.
  bool add(int64_t rank, GatherPart part, double now);

  struct Done {
    std::vector<int> members;
    std::string body; ///< body of the Gathered message that each of them receives
  };
  /// Returns the result of the rank's exchange once all members have contributed; the exchange is
  /// then over.
  std::optional<Done> take(int64_t rank);
  /// Returns a member for which this rank waits and which itself waits, in another exchange, for
  /// this rank, directly or through others: a deadlock.
  std::optional<int64_t> findOther(int64_t rank) const;

  bool isInside(int64_t rank) const { return inside_[static_cast<size_t>(rank)] != nullptr; }
  /// Returns the name of the exchange that a rank is in. The rank must be in one.
  const std::string &nameOf(int64_t rank) const;

  /// The exchange that the longest waiting rank is ultimately waiting for.
  struct Wait {
    int64_t rank = 0; ///< a rank that waits in the exchange that others have not joined
    std::string name; ///< name of that exchange
    double since = 0; ///< when the rank that has waited longest began to wait
    std::vector<int64_t> missing;
  };
  std::optional<Wait> longestWait() const;

private:
  using Key = std::tuple<std::string, hal::Peers::Fold, std::vector<int>>;
  struct Group {
    Key key;
    std::vector<std::string> parts; ///< in the order of `members`
    std::vector<double> since;      ///< when each arrived; negative: not yet
    size_t left = 0;                ///< members that have not arrived

    int64_t memberAt(size_t index) const;
    size_t indexOf(int64_t rank) const; ///< number of members if it is not a member
    bool isMissing(size_t index) const { return since[index] < 0; }
    size_t firstCome() const; ///< the member that has waited longest
  };
  bool leadsTo(const Group *from, int64_t rank, std::vector<const Group *> &seen) const;

  std::map<Key, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<Group>> inside_; ///< by rank; null: not in an exchange
  std::vector<int32_t> awaited_;               ///< by rank: exchanges that it has yet to join
};

} // namespace shardc::launch
