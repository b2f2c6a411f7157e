// Sums the share of time that each rank spends waiting in collectives. The late rank is the one
// that waits much less than the median of the others, in several windows of time.
#include "runtime/launch/LateRanks.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/ProgressWord.h"

namespace shardc::launch {
namespace {

bool isInCollective(uint32_t word) {
  return ProgressWord::isInside(word) && !ProgressWord::isMaking(word);
}

/// The median share of all ranks except one whose share is `own`; the smaller one of two medians.
double medianOfOthers(const Waits::Kind &kind, int64_t own) {
  int64_t count = -1;
  for (const auto &[share, ranks] : kind.ranks)
    count += ranks;
  int64_t before = (count - 1) / 2; // number of ranks below it
  for (const auto &[share, ranks] : kind.ranks) {
    before -= ranks - (share == own);
    if (before < 0)
      return static_cast<double>(share) / Waits::kParts;
  }
  return 0;
}

} // namespace

void Waits::add(const std::string &kind, int64_t rank, double share) {
  Waits one;
  auto parts = static_cast<int64_t>(std::lround(std::clamp(share, 0.0, 1.0) * kParts));
  one.kinds[kind] = {{{parts, 1}}, {{parts, rank}}};
  merge(one);
}

void Waits::merge(const Waits &other) {
  for (const auto &[name, from] : other.kinds) {
    Kind &kind = kinds[name];
    for (const auto &[share, ranks] : from.ranks)
      kind.ranks[share] += ranks;
    kind.least.insert(kind.least.end(), from.least.begin(), from.least.end());
    std::ranges::sort(kind.least);
    kind.least.resize(std::min(kind.least.size(), kLeastMax));
  }
}

void LateRanks::advance(Rank &rank, double now) const {
  double from = std::max(rank.since, begin_);
  if (rank.isInside && begin_ >= 0 && now > from)
    rank.waited += now - from;
  rank.since = now;
}

void LateRanks::note(int64_t number, const RankProgress &position, double now) {
  Rank &rank = ranks_[number];
  advance(rank, now);
  rank.isInside = std::ranges::any_of(position.words, isInCollective);
}

Waits LateRanks::take(double now, const std::function<std::string(int64_t)> &kindOf) {
  Waits waits;
  double seconds = now - begin_;
  for (auto &[number, rank] : ranks_) {
    advance(rank, now);
    if (begin_ >= 0 && seconds > 0)
      waits.add(kindOf ? kindOf(number) : "", number, rank.waited / seconds);
    rank.waited = 0;
  }
  begin_ = now;
  return waits;
}

bool LateJudge::isDue(double now, uint64_t steps) const {
  bool isWindow = now - begin_ >= kWindowSeconds && steps >= stepsBefore_ + kStepsMin;
  return steps > 0 && (begin_ < 0 || isWindow);
}

std::vector<LateRank> LateJudge::judge(const Waits &waits, double now, uint64_t steps) {
  std::vector<LateRank> found;
  std::map<int64_t, int> lateWindows;
  for (const auto &[name, kind] : waits.kinds)
    for (const auto &[share, rank] : kind.least) {
      double own = static_cast<double>(share) / Waits::kParts, others = medianOfOthers(kind, share);
      if (begin_ < 0 || others - own < kGapLeast)
        continue;
      int windows = lateWindows[rank] = lateWindows_[rank] + 1;
      if (windows == kWindows)
        found.push_back({rank, own, others, now - begin_, steps - stepsBefore_});
    }
  lateWindows_ = std::move(lateWindows);
  begin_ = now;
  stepsBefore_ = steps;
  return found;
}

} // namespace shardc::launch
