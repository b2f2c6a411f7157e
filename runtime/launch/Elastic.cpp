// Keeps, for each place (a process that was started), whether it is there and on which machine, and
// chooses ranks among the places that are.
#include "runtime/launch/Elastic.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace shardc::launch {
namespace {

/// Seconds to wait for further expected places once the others suffice for a size.
constexpr double kGatherSeconds = 1;

} // namespace

ElasticLeader::ElasticLeader(ElasticOptions options)
    : options_(std::move(options)), places_(static_cast<size_t>(options_.places())) {}

void ElasticLeader::open(double startsAt, int64_t savedStep, bool isInOrder) {
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

void ElasticLeader::came(int64_t place, const std::string &machine) {
  places_[static_cast<size_t>(place)].isThere = true;
  places_[static_cast<size_t>(place)].machine = machine;
}

void ElasticLeader::left(int64_t place) { places_[static_cast<size_t>(place)].isThere = false; }

std::optional<Crew> ElasticLeader::begin(double now) {
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

bool ElasticLeader::isHopeless(double now) const {
  return crew_.empty() && now >= deadline_ && (!hasFirst() || largestUpTo(usable()) == 0);
}

int64_t ElasticLeader::growsTo() const {
  auto own = static_cast<int64_t>(crew_.size());
  if (own == 0 || isStalled_)
    return 0;
  int64_t count = own;
  for (size_t i = 0; i < places_.size(); ++i)
    count += places_[i].isUsable() && !std::ranges::binary_search(crew_, static_cast<int64_t>(i));
  int64_t most = largestUpTo(count);
  return most > own ? most : 0;
}

bool ElasticLeader::accuse(int64_t rank, int64_t newestSave) {
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

/// Returns the largest listed size that is at most `count`; 0 if there is none.
int64_t ElasticLeader::largestUpTo(int64_t count) const {
  auto fits = [count](int64_t size) { return size <= count; };
  auto at = std::ranges::find_if(options_.sizes, fits);
  return at == options_.sizes.end() ? 0 : *at;
}

int64_t ElasticLeader::usable() const {
  return std::ranges::count_if(places_, [](const Place &place) { return place.isUsable(); });
}

/// Prefers machines with more registered places, so a machine that lacks a place is left out as a
/// whole if possible, and neighbouring ranks stay on one machine.
Crew ElasticLeader::choose(int64_t size) const {
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

} // namespace shardc::launch
