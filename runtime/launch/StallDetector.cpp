#include "runtime/launch/StallDetector.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/launch/RankReports.h"

namespace shardc::launch {
namespace {

constexpr double kLostSeconds =
    10; ///< silence alone ends no job before this, however short its time limit is
constexpr double kMakingSeconds =
    30; ///< nor does the making of a channel, which loads libraries and waits for contexts

} // namespace

void StallDetector::note(int64_t rank, const RankProgress &position, double now) {
  Rank &moved = ranks_[static_cast<size_t>(rank)];
  if (position != moved.clock.last())
    moved.movedAt = now;
  moved.clock.update(position, now);
}

/// Ranks that may hold the others up, or -1.
struct StallDetector::Suspects {
  std::vector<RankProgress> positions;
  int64_t late = -1;   ///< too long in a collective, or making a channel
  int64_t silent = -1; ///< longest without a sign of life, beyond what is usual
  double silence = kSilentSeconds;
};

std::optional<Report> StallDetector::find(const RankConnections &connections,
                                          const Exchange &exchange, double now) const {
  std::optional<Report> stall = findStall(suspectsOf(connections, exchange, now), exchange, now);
  return stall ? stall : findEndless(now);
}

StallDetector::Suspects StallDetector::suspectsOf(const RankConnections &connections,
                                                  const Exchange &exchange, double now) const {
  Suspects found;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    auto rank = static_cast<int64_t>(r);
    const StallClock &clock = ranks_[r].clock;
    found.positions.push_back(clock.last());
    if (exchange.isInside(rank)) // whichever rank is late, this one waits itself
      found.positions.back().words = {ProgressWord::kExchanging};
    const Connection &connection = *connections[r];
    if (connection.isDone)
      continue;
    if (now - connection.heardAt > found.silence) {
      found.silence = now - connection.heardAt;
      found.silent = rank;
    }
    bool isLate = clock.longestStay(now) > options_.timeoutSeconds ||
                  clock.longestMaking(now) > std::max(options_.timeoutSeconds, kMakingSeconds);
    if (found.late < 0 && isLate)
      found.late = rank;
  }
  return found;
}

/// Three things end a job whose work has stopped: a rank that stays in an exchange or a collective
/// too long, and one that is silent for as long. A rank may also wait for the last one without any
/// sign of it: libraries make connections before any collective.
std::optional<Report> StallDetector::findStall(const Suspects &suspects, const Exchange &exchange,
                                               double now) const {
  std::optional<Exchange::Wait> wait = exchange.longestWait();
  bool isExchangeLate = wait && now - wait->since > options_.timeoutSeconds;
  bool isLost =
      suspects.silent >= 0 && suspects.silence > std::max(options_.timeoutSeconds, kLostSeconds);
  if (suspects.late < 0 && !isExchangeLate && !isLost)
    return std::nullopt;
  std::string limit =
      fmt::format("the timeout of {:.4g} min (dist.distributed_timeout_minutes) has expired",
                  options_.timeoutSeconds / 60);
  // One that waits elsewhere is not what holds the exchange up.
  bool isHeldUp = wait && std::ranges::none_of(wait->missing, [this](int64_t rank) {
                    return std::ranges::any_of(last(rank).words, ProgressWord::isInside);
                  });
  bool isSilentMissing =
      isHeldUp && std::ranges::find(wait->missing, suspects.silent) != wait->missing.end();
  if (isHeldUp && (isExchangeLate || (isLost && isSilentMissing)))
    return makeReport(report::RankStuck,
                      fmt::format("rank {} did not reach '{}', where rank {} waits; {}",
                                  rangesOf(wait->missing), wait->name, wait->rank, limit));
  auto silent = static_cast<int>(suspects.silent);
  std::string text = options_.explainStall ? options_.explainStall(suspects.positions, silent)
                     : suspects.late >= 0
                         ? fmt::format("rank {} is stuck in a collective", suspects.late)
                         : fmt::format("rank {} does not respond", silent);
  return makeReport(report::RankStuck, fmt::format("{}; {}", text, limit));
}

/// A job that was asked to end does so after a step that all ranks come to. If nobody moves any
/// more there is no such step.
std::optional<Report> StallDetector::findEndless(double now) const {
  bool isAsked = false;
  double movedAt = 0;
  std::vector<RankProgress> positions;
  for (const Rank &rank : ranks_) {
    isAsked = isAsked || rank.clock.last().isAsked;
    movedAt = std::max(movedAt, rank.movedAt);
    positions.push_back(rank.clock.last());
  }
  if (!isAsked || now - movedAt <= kAskedSeconds)
    return std::nullopt;
  std::string text = options_.explainStall ? options_.explainStall(positions, -1) : "";
  return makeReport(report::RankStuck,
                    fmt::format("{}{}the job was asked to end, but it has made no progress for "
                                "{:.3g} s",
                                text, text.empty() ? "" : "; ", kAskedSeconds));
}

} // namespace shardc::launch
