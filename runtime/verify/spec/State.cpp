// Implements placements and sums of contributions.
#include "runtime/verify/spec/State.h"

#include <cmath>

namespace shardc::plan::spec {

std::optional<Multiple> Multiple::of(double number, int64_t underMax) {
  for (int64_t under = 1; under <= underMax; ++under)
    if (double over = number * static_cast<double>(under);
        over >= 1 && over < 1e15 && std::abs(over - std::round(over)) < 1e-12 * over)
      return Multiple{std::llround(over), under};
  return std::nullopt;
}

std::string_view wordOf(const Place &place) {
  constexpr std::string_view kWords[] = {
      "a shard",         "a partial sum",      "a part of a maximum",
      "its own samples", "a sum over samples", "a whole value"};
  constexpr std::string_view kRows[] = {"", "rows of its own tokens", "routed rows",
                                        "rows of several ranks"};
  if (place.rows != Place::Any)
    return place.kind == Place::Part ? "a partial sum of rows of several ranks" : kRows[place.rows];
  return place.isSummed ? "a sum over routed rows" : kWords[place.kind];
}

const Placement State::kNowhere;

Placement &State::edit() {
  if (!placement_ || placement_.use_count() > 1)
    placement_ = std::make_shared<Placement>(*operator->());
  return *placement_;
}

void State::put(const Place &place) {
  std::vector<Place> &places = edit().places;
  auto at = std::ranges::lower_bound(places, place.axis, {}, &Place::axis);
  if (at != places.end() && at->axis == place.axis)
    *at = place;
  else
    places.insert(at, place);
}

bool Value::operator==(const Value &other) const {
  auto isSame = [](const auto &a, const auto &b) { return a == b || (a && b && *a == *b); };
  return kind == other.kind && op == other.op && isSame(block, other.block) &&
         isSame(step, other.step) && isSame(list, other.list) && isSame(maxima, other.maxima) &&
         state == other.state;
}

bool addContributions(std::vector<Contribution> &to, const std::vector<Contribution> &more) {
  std::vector<Contribution> all = to, joined;
  all.insert(all.end(), more.begin(), more.end());
  std::ranges::sort(all);
  for (const Contribution &each : all) {
    bool follows = !joined.empty() && joined.back().term == each.term;
    if (follows && each.first <= joined.back().last)
      return false;
    if (follows && each.first == joined.back().last + 1)
      joined.back().last = each.last;
    else
      joined.push_back(each);
  }
  to = std::move(joined);
  return true;
}

} // namespace shardc::plan::spec
