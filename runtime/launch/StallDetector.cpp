// Keeps the last progress of each rank with the time at which it changed, and compares these times
// with the job's limits.
#include "runtime/launch/StallDetector.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/launch/RankReports.h"

namespace shardc::launch {
namespace {

constexpr double kLostSeconds =
    10; ///< silence alone ends no job before this, even if its time limit is shorter
constexpr double kMakingSeconds =
    30; ///< nor does creating a channel, which loads libraries and waits for contexts

} // namespace

void StallDetector::note(int64_t rank, const RankProgress &position, double now) {
  Rank &moved = ranks_[rank];
  if (position != moved.clock.last())
    moved.movedAt = now;
  moved.clock.update(position, now);
}

const RankProgress &StallDetector::last(int64_t rank) const {
  static const RankProgress kNothing;
  auto known = ranks_.find(rank);
  return known == ranks_.end() ? kNothing : known->second.clock.last();
}

Standing StallDetector::standingOf(std::span<const Connection *const> ranks,
                                   const Connections &relays, double now) const {
  static const Rank kNothing;
  Standing all;
  for (const Connection *connection : ranks) {
    int64_t number = connection->hello->rank;
    auto known = ranks_.find(number);
    const Rank &rank = known == ranks_.end() ? kNothing : known->second;
    const RankProgress &last = rank.clock.last();
    Standing one;
    one.stepsLeast = one.stepsMost = last.steps;
    one.last = number;
    one.isAsked = last.isAsked;
    one.still = now - rank.movedAt;
    if (!connection->isDone) {
      one.inside = {number, rank.clock.longestStay(now)};
      one.making = {number, rank.clock.longestMaking(now)};
      one.silent = {number, now - connection->heardAt};
    }
    all.merge(one);
  }
  for (const std::unique_ptr<Connection> &relay : relays)
    if (relay->standing && relay->wire.isOpen())
      all.merge(relay->standing->after(now - relay->heardAt));
  return all;
}

bool StallDetector::isLate(const Standing &all) const {
  return all.inside.seconds > options_.timeoutSeconds ||
         all.making.seconds > std::max(options_.timeoutSeconds, kMakingSeconds);
}

bool StallDetector::isLost(const Standing &all) const {
  return all.silent.seconds > std::max(options_.timeoutSeconds, kLostSeconds);
}

/// Three conditions end a job whose work has stopped: a rank stays too long in a collective, stays
/// too long in an exchange, or is silent for as long. A rank may also wait for the last one without
/// any sign of it, since libraries make connections before any collective.
bool StallDetector::isStalled(const Standing &all, const Exchange &exchange, double now) const {
  std::optional<Exchange::Wait> wait = exchange.longestWait();
  return isLate(all) || isLost(all) || (wait && now - wait->since > options_.timeoutSeconds);
}

/// A job that was asked to end does so after a step that all ranks reach. If no rank advances any
/// more, there is no such step.
bool StallDetector::isEndless(const Standing &all) {
  return all.isAsked && all.still > kAskedSeconds;
}

bool StallDetector::isStuck(const Standing &all, const Exchange &exchange, double now) const {
  return isStalled(all, exchange, now) || isEndless(all);
}

std::vector<RankProgress> StallDetector::positions(const Exchange *exchange) const {
  std::vector<RankProgress> all;
  for (int64_t rank = 0; rank < options_.worldSize; ++rank) {
    all.push_back(last(rank));
    if (exchange && exchange->isInside(rank)) // whichever rank is late, this rank is waiting
      all.back().words = {ProgressWord::kExchanging};
  }
  return all;
}

std::optional<Report> StallDetector::find(const Standing &all, const Exchange &exchange,
                                          double now) const {
  if (isStalled(all, exchange, now))
    return stallOf(all, exchange, now);
  if (!isEndless(all))
    return std::nullopt;
  std::string text = options_.explainStall ? options_.explainStall(positions(nullptr), -1) : "";
  return makeReport(report::RankStuck,
                    fmt::format("{}{}the job was asked to end, but it has made no progress for "
                                "{:.3g} s",
                                text, text.empty() ? "" : "; ", kAskedSeconds));
}

Report StallDetector::stallOf(const Standing &all, const Exchange &exchange, double now) const {
  std::string limit =
      fmt::format("the timeout of {:.4g} min (dist.distributed_timeout_minutes) has expired",
                  options_.timeoutSeconds / 60);
  auto silent = static_cast<int>(all.silent.seconds > kSilentSeconds ? all.silent.rank : -1);
  // A rank that waits elsewhere is not the one that delays this exchange.
  std::optional<Exchange::Wait> wait = exchange.longestWait();
  bool isHeldUp = wait && std::ranges::none_of(wait->missing, [this](int64_t rank) {
                    return std::ranges::any_of(last(rank).words, ProgressWord::isInside);
                  });
  bool isExchangeLate = wait && now - wait->since > options_.timeoutSeconds;
  bool isSilentMissing =
      isHeldUp && isLost(all) && std::ranges::find(wait->missing, silent) != wait->missing.end();
  if (isHeldUp && (isExchangeLate || isSilentMissing))
    return makeReport(report::RankStuck,
                      fmt::format("rank {} did not reach '{}', where rank {} waits; {}",
                                  rangesOf(wait->missing), wait->name, wait->rank, limit));
  int64_t late = all.inside.seconds > options_.timeoutSeconds ? all.inside.rank : all.making.rank;
  std::string text = options_.explainStall ? options_.explainStall(positions(&exchange), silent)
                     : isLate(all)         ? fmt::format("rank {} is stuck in a collective", late)
                                           : fmt::format("rank {} does not respond", silent);
  return makeReport(report::RankStuck, fmt::format("{}; {}", text, limit));
}

} // namespace shardc::launch
