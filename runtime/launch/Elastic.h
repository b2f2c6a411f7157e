// Decides how many ranks an elastic job has (`--elastic`), and which of its processes they are.
// Like the state machines of restarts (Restarts.h), it uses no sockets, clocks or processes: events
// go in, with the time in seconds, and actions come out. Rank 0's supervisor owns it, and
// launch.simulation drives it with seeds. A place is a supervisor that a launcher has started,
// identified by the launcher's number. Rank 0 is always at place 0, whose supervisor makes the
// decisions. Each attempt assigns the other ranks to places anew, in the order of their numbers.
// Keeps, for each place (a process that was started), whether it is there and on which machine, and
// chooses ranks among the places that are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
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
  explicit ElasticLeader(ElasticOptions options)
      : options_(std::move(options)), places_(static_cast<size_t>(options_.places())) {}

  const ElasticOptions &options() const { return options_; }

  /// Opens an attempt whose processes may start from time `startsAt` on; processes of the last
  /// attempt register again. The attempt begins at `savedStep`. `isInOrder`: the last attempt ended
  /// only in order to grow.
  void open(double startsAt, int64_t savedStep, bool isInOrder) {
    for (int64_t place : crew_)
      places_[static_cast<size_t>(place)].isThere = true;
    int64_t count = 0, full = options_.sizes.front();
    for (size_t i = 0; i < places_.size(); ++i) {
      Place &place = places_[i];
      place.isExpected = hasOpened_ ? place.isUsable() : static_cast<int64_t>(i) < full;
      place.isThere = false;
      count += place.isExpected;
    }
    aim_ = std::max(largestUpTo(count), options_.sizes.back());
    // Without a successful save in between, growing could repeat forever.
    isStalled_ = savedStep <= openedAt_ && (isInOrder || isStalled_);
    openedAt_ = std::max(openedAt_, savedStep);
    deadline_ = startsAt + options_.waitSeconds;
    enoughSince_ = -1;
    hasOpened_ = true;
    crew_.clear();
  }

  /// Records that the process of a place has registered. `machine` is the same for all places of
  /// one machine.
  void came(int64_t place, const std::string &machine) {
    places_[static_cast<size_t>(place)].isThere = true;
    places_[static_cast<size_t>(place)].machine = machine;
  }

  /// Records that the process of a place is gone.
  void left(int64_t place) { places_[static_cast<size_t>(place)].isThere = false; }

  /// Returns the ranks of the attempt once, when it may begin: as soon as the expected number of
  /// places has registered, or later with the largest size for which enough places have registered.
  std::optional<Crew> begin(double now) {
    if (!crew_.empty() || !hasFirst())
      return std::nullopt;
    int64_t most = largestUpTo(usable());
    bool isEnough = most >= aim_;
    bool areAllThere = std::ranges::all_of(
        places_, [](const Place &place) { return !place.isExpected || place.isThere; });
    if (!isEnough)
      enoughSince_ = -1;
    else if (enoughSince_ < 0)
      enoughSince_ = now;
    bool isTime = isEnough && (areAllThere || now - enoughSince_ >= kGatherSeconds);
    if (most == 0 || (!isTime && now < deadline_))
      return std::nullopt;
    crew_ = choose(most);
    return crew_;
  }

  /// Whether the waiting time is over and too few places have registered for the smallest size.
  bool isHopeless(double now) const {
    return crew_.empty() && now >= deadline_ && (!hasFirst() || largestUpTo(usable()) == 0);
  }

  /// The number of ranks with which a running job continues after its next save; 0 if it keeps its
  /// number.
  int64_t growsTo() const {
    auto own = static_cast<int64_t>(crew_.size());
    if (own == 0 || isStalled_)
      return 0;
    int64_t count = own;
    for (size_t i = 0; i < places_.size(); ++i)
      count += places_[i].isUsable() && !std::ranges::binary_search(crew_, static_cast<int64_t>(i));
    int64_t most = largestUpTo(count);
    return most > own ? most : 0;
  }

  /// Records that an attempt failed because of this rank. Returns true if the job leaves out the
  /// rank's place from now on: the place caused two faults in a row without a save in between, and
  /// the job can continue without it.
  bool accuse(int64_t rank, int64_t newestSave) {
    if (rank < 0 || rank >= static_cast<int64_t>(crew_.size()))
      return false;
    int64_t place = crew_[static_cast<size_t>(rank)];
    bool isAgain = accused_ == place && newestSave <= accusedAt_;
    accused_ = place;
    accusedAt_ = newestSave;
    int64_t others = -1;
    for (size_t i = 0; i < places_.size(); ++i)
      others += places_[i].isUsable() || std::ranges::binary_search(crew_, static_cast<int64_t>(i));
    if (!isAgain || place == 0 || largestUpTo(others) == 0)
      return false;
    places_[static_cast<size_t>(place)].isLeftOut = true;
    return true;
  }

  const Crew &crew() const { return crew_; }
  bool isThere(int64_t place) const { return places_[static_cast<size_t>(place)].isThere; }
  bool isLeftOut(int64_t place) const { return places_[static_cast<size_t>(place)].isLeftOut; }
  /// Whether this attempt expects the place to register.
  bool isExpected(int64_t place) const { return places_[static_cast<size_t>(place)].isExpected; }

private:
  /// Seconds to wait for further expected places once the others suffice for a size.
  static constexpr double kGatherSeconds = 1;

  struct Place {
    bool isThere = false, isLeftOut = false, isExpected = false;
    std::string machine;
    bool isUsable() const { return isThere && !isLeftOut; }
  };

  /// Returns the largest listed size that is at most `count`; 0 if there is none.
  int64_t largestUpTo(int64_t count) const {
    auto fits = [count](int64_t size) { return size <= count; };
    auto at = std::ranges::find_if(options_.sizes, fits);
    return at == options_.sizes.end() ? 0 : *at;
  }

  int64_t usable() const {
    return std::ranges::count_if(places_, [](const Place &place) { return place.isUsable(); });
  }

  bool hasFirst() const { return places_.front().isUsable(); }
  /// Prefers machines with more registered places, so a machine that lacks a place is left out as a
  /// whole if possible, and neighbouring ranks stay on one machine.
  Crew choose(int64_t size) const {
    std::map<std::string, int64_t> onMachine;
    for (const Place &place : places_)
      onMachine[place.machine] += place.isUsable();
    Crew order;
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_[i].isUsable())
        order.push_back(static_cast<int64_t>(i));
    std::map<std::string, int64_t> firstOf;
    for (int64_t place : order)
      firstOf.emplace(places_[static_cast<size_t>(place)].machine, place);
    std::ranges::sort(order, {}, [&](int64_t place) {
      const std::string &machine = places_[static_cast<size_t>(place)].machine;
      bool isLeaders = machine == places_.front().machine;
      return std::tuple(!isLeaders, -onMachine[machine], firstOf[machine], place);
    });
    order.resize(static_cast<size_t>(size));
    std::ranges::sort(order);
    return order;
  }

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
