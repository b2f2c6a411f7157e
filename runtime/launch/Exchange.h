// The exchanges under way among ranks of a job. The members of a group each give a part, and what
// is asked for of the parts goes back to them. A group waits for its own members only.
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

/// Ranks in the order that they have, none twice. Those of a group of a mesh take a few numbers.
void packRanks(Packer &packer, const std::vector<int> &list);
/// Nothing where one is not among `ranks`, or there twice.
std::optional<std::vector<int>> unpackRanks(Unpacker &in, int64_t ranks);

/// A rank's part, as the body of a Gather.
struct GatherPart {
  std::string key;
  hal::Peers::Fold fold = hal::Peers::Fold::Parts;
  std::vector<int> members; ///< in order; none: all ranks
  std::string bytes;

  std::string pack() const;
  /// Members are among `ranks`, none twice.
  static std::optional<GatherPart> unpack(std::string_view body, int64_t ranks);
};

class Exchange {
public:
  explicit Exchange(int64_t ranks)
      : inside_(static_cast<size_t>(ranks)), awaited_(static_cast<size_t>(ranks)) {}

  /// Takes the body of a rank's Gather; false if it is none, or the rank is in an exchange already.
  bool add(int64_t rank, std::string_view body, double now);
  bool add(int64_t rank, GatherPart part, double now);

  struct Done {
    std::vector<int> members;
    std::string body; ///< of the Gathered that each of them gets
  };
  /// What the rank's exchange gives, if all of its members have come; it is over then.
  std::optional<Done> take(int64_t rank);
  /// A member that this rank waits for, and that waits in another exchange for this rank, maybe by
  /// way of others: none of them comes to an end.
  std::optional<int64_t> findOther(int64_t rank) const;

  bool isInside(int64_t rank) const { return inside_[static_cast<size_t>(rank)] != nullptr; }
  /// The exchange that a rank is in, as text; it is in one.
  const std::string &nameOf(int64_t rank) const;

  /// What holds up the rank that has waited longest.
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
