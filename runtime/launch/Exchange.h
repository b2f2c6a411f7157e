// The current exchanges between ranks of a job. Each member of a group contributes a part, and gets
// back the requested parts. A group waits for its own members only.
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

/// A rank's part, as the body of a Gather.
struct GatherPart {
  std::string key;
  hal::Peers::Fold fold = hal::Peers::Fold::Parts;
  std::vector<int> members; ///< in order; none: all ranks
  std::string bytes;

  static void fields(auto &io, auto &it, int64_t ranks) {
    io.field(it.key);
    io.field(it.fold, hal::Peers::Fold::kLast);
    io.ranks(it.members, ranks);
    io.field(it.bytes);
    io.check(it.bytes.size() <= kBlobBytesMax);
  }
  /// Members are among `ranks`, none twice.
};

class Exchange {
public:
  explicit Exchange(int64_t ranks)
      : inside_(static_cast<size_t>(ranks)), awaited_(static_cast<size_t>(ranks)) {}

  /// False if the rank is no member, or in an exchange already.
  bool add(int64_t rank, GatherPart part, double now);

  struct Done {
    std::vector<int> members;
    std::string body; ///< of the Gathered that each of them gets
  };
  /// The result of the rank's exchange once all members have come; the exchange is then over.
  std::optional<Done> take(int64_t rank);
  /// A member for which this rank waits, and which itself waits in another exchange for this rank,
  /// directly or through others: a deadlock.
  std::optional<int64_t> findOther(int64_t rank) const;

  bool isInside(int64_t rank) const { return inside_[static_cast<size_t>(rank)] != nullptr; }
  /// The exchange that a rank is in, as text; it is in one.
  const std::string &nameOf(int64_t rank) const;

  /// The cause why the rank that has waited longest is waiting.
  struct Wait {
    int64_t rank = 0; ///< that waits, in the exchange that others do not come to
    std::string name; ///< of that exchange
    double since = 0; ///< when the one that has waited longest came
    std::vector<int64_t> missing;
  };
  std::optional<Wait> longestWait() const;

private:
  using Key = std::tuple<std::string, hal::Peers::Fold, std::vector<int>>;
  struct Group {
    Key key;
    std::vector<std::string> parts; ///< in the order of members
    std::vector<double> since;      ///< when each came; negative: has not
    size_t left = 0;                ///< members that have not come

    int64_t memberAt(size_t index) const;
    size_t indexOf(int64_t rank) const; ///< as many as members if it is none
    bool isMissing(size_t index) const { return since[index] < 0; }
    size_t firstCome() const; ///< the one that has waited longest
  };
  bool leadsTo(const Group *from, int64_t rank, std::vector<const Group *> &seen) const;

  std::map<Key, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<Group>> inside_; ///< by rank; null: in none
  std::vector<int32_t> awaited_;               ///< by rank: exchanges to which it has not come
};

} // namespace shardc::launch
