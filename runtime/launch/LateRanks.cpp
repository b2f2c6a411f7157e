#include "runtime/launch/LateRanks.h"

#include <algorithm>
#include <map>

#include "runtime/base/ProgressWord.h"

namespace shardc::launch {
namespace {

bool isInCollective(uint32_t word) {
  return ProgressWord::isInside(word) && !ProgressWord::isMaking(word);
}

/// Of two, the smaller.
double medianOf(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

} // namespace

void LateRanks::advance(Rank &rank, double now) const {
  double from = std::max(rank.since, begin_);
  if (rank.isInside && begin_ >= 0 && now > from)
    rank.waited += now - from;
  rank.since = now;
}

void LateRanks::note(int64_t number, const RankProgress &position, double now) {
  Rank &rank = ranks_[static_cast<size_t>(number)];
  advance(rank, now);
  rank.hasSpoken = position.steps > 0;
  rank.isInside = std::ranges::any_of(position.words, isInCollective);
  rank.steps = position.steps;
}

uint64_t LateRanks::stepsOfWindow() const {
  uint64_t steps = UINT64_MAX;
  for (const Rank &rank : ranks_)
    steps = std::min(steps, rank.steps - std::min(rank.steps, rank.stepsBefore));
  return steps;
}

void LateRanks::beginWindow(double now) {
  begin_ = now;
  for (Rank &rank : ranks_) {
    rank.waited = 0;
    rank.stepsBefore = rank.steps;
  }
}

std::vector<LateRank> LateRanks::find(double now,
                                      const std::function<std::string(int64_t)> &kindOf) {
  if (ranks_.size() < 2 || !std::ranges::all_of(ranks_, &Rank::hasSpoken))
    return {};
  if (begin_ < 0)
    beginWindow(now);
  double seconds = now - begin_;
  uint64_t steps = stepsOfWindow();
  if (seconds < kWindowSeconds || steps < kStepsMin)
    return {};
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    advance(ranks_[rank], now);
    kinds[kindOf ? kindOf(static_cast<int64_t>(rank)) : ""].push_back(rank);
  }
  std::vector<LateRank> found;
  for (const auto &[kind, members] : kinds)
    for (size_t rank : members) {
      std::vector<double> others;
      for (size_t other : members)
        if (other != rank)
          others.push_back(ranks_[other].waited / seconds);
      if (others.empty())
        continue;
      double own = ranks_[rank].waited / seconds, median = medianOf(std::move(others));
      int &lateWindows = ranks_[rank].lateWindows;
      lateWindows = median - own >= kGapLeast ? lateWindows + 1 : 0;
      if (lateWindows == kWindows)
        found.push_back({static_cast<int64_t>(rank), own, median, seconds, steps});
    }
  beginWindow(now);
  return found;
}

} // namespace shardc::launch
