// Decides how many ranks an elastic job has (`--elastic`), and which of its processes they are.
// Like the state machines of restarts (Restarts.h), it uses no sockets, clocks or processes: events
// go in, with the time in seconds, and actions come out. Rank 0's supervisor owns it, and
// launch.simulation drives it with seeds. A place is a supervisor that a launcher has started,
// identified by the launcher's number. Rank 0 is always at place 0, whose supervisor makes the
// decisions. Each attempt assigns the other ranks to places anew, in the order of their numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardc::launch {

struct ElasticOptions {
  std::vector<int64_t> sizes; ///< permitted numbers of ranks, descending; empty: not elastic
  int64_t spares = 0;         ///< places in addition to the largest size
  double waitSeconds = 600;   ///< longest wait for expected places that do not register

  bool isElastic() const { return !sizes.empty(); }
  int64_t places() const { return isElastic() ? sizes.front() + spares : 0; }
};

/// The place of each rank of an attempt, by rank.
using Crew = std::vector<int64_t>;

class ElasticLeader {
public:
  explicit ElasticLeader(ElasticOptions options);

  const ElasticOptions &options() const { return options_; }

  /// Opens an attempt whose processes may start from time `startsAt` on; processes of the last
  /// attempt register again. The attempt begins at `savedStep`. `isInOrder`: the last attempt ended
  /// only in order to grow.
  void open(double startsAt, int64_t savedStep, bool isInOrder);
  /// Records that the process of a place has registered. `machine` is the same for all places of
  /// one machine.
  void came(int64_t place, const std::string &machine);
  /// Records that the process of a place is gone.
  void left(int64_t place);
  /// Returns the ranks of the attempt once, when it may begin: as soon as the expected number of
  /// places has registered, or later with the largest size for which enough places have registered.
  std::optional<Crew> begin(double now);
  /// Whether the waiting time is over and too few places have registered for the smallest size.
  bool isHopeless(double now) const;

  /// The number of ranks with which a running job continues after its next save; 0 if it keeps its
  /// number.
  int64_t growsTo() const;
  /// Records that an attempt failed because of this rank. Returns true if the job leaves out the
  /// rank's place from now on: the place caused two faults in a row without a save in between, and
  /// the job can continue without it.
  bool accuse(int64_t rank, int64_t newestSave);

  const Crew &crew() const { return crew_; }
  bool isThere(int64_t place) const { return places_[static_cast<size_t>(place)].isThere; }
  bool isLeftOut(int64_t place) const { return places_[static_cast<size_t>(place)].isLeftOut; }
  /// Whether this attempt expects the place to register.
  bool isExpected(int64_t place) const { return places_[static_cast<size_t>(place)].isExpected; }

private:
  struct Place {
    bool isThere = false, isLeftOut = false, isExpected = false;
    std::string machine;
    bool isUsable() const { return isThere && !isLeftOut; }
  };

  int64_t largestUpTo(int64_t count) const;
  int64_t usable() const;
  bool hasFirst() const { return places_.front().isUsable(); }
  Crew choose(int64_t size) const;

  ElasticOptions options_;
  std::vector<Place> places_;
  Crew crew_;       ///< ranks of the running attempt; empty if it has not begun
  int64_t aim_ = 0; ///< number of ranks at which waiting longer is pointless
  double deadline_ = 0, enoughSince_ = -1;
  int64_t openedAt_ = -1; ///< step of the save with which the attempt began
  bool hasOpened_ = false, isStalled_ = false;
  std::optional<int64_t> accused_; ///< the place that caused the last fault
  int64_t accusedAt_ = -1;         ///< step of the newest save at the time of that fault
};

} // namespace shardc::launch
