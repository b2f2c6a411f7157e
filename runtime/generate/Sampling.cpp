#include "runtime/generate/Sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/base/Philox.h"

namespace shardc::generate {
namespace {

constexpr float kLeftOut = -std::numeric_limits<float>::infinity();

void punishRepeated(std::vector<float> &scores, std::vector<int32_t> before, double penalty) {
  std::ranges::sort(before);
  before.erase(std::unique(before.begin(), before.end()), before.end());
  for (int32_t token : before)
    if (auto at = static_cast<size_t>(token); at < scores.size())
      scores[at] = static_cast<float>(scores[at] < 0 ? scores[at] * penalty : scores[at] / penalty);
}

/// Leaves out all scores that are less than the `count`-th largest.
void keepLargest(std::vector<float> &scores, int64_t count) {
  if (count == 0 || count >= std::ssize(scores))
    return;
  std::vector<float> sorted = scores;
  std::ranges::nth_element(sorted, sorted.begin() + count - 1, std::greater());
  const float least = sorted[static_cast<size_t>(count) - 1];
  std::ranges::replace_if(
      scores, [&](float score) { return score < least; }, kLeftOut);
}

/// Leaves out what is less likely than the likeliest tokens that have probability `part` together.
void keepLikeliest(std::vector<std::pair<int32_t, double>> &shares, double part) {
  double whole = 0, sum = 0;
  for (const auto &[token, share] : shares)
    whole += share;
  auto isLess = [](const auto &a, const auto &b) {
    return a.second < b.second || (a.second == b.second && a.first > b.first);
  };
  std::ranges::make_heap(shares, isLess);
  auto end = shares.end();
  while (end != shares.begin() && (end == shares.end() || sum < part * whole)) {
    std::pop_heap(shares.begin(), end, isLess);
    sum += (--end)->second;
  }
  shares.erase(shares.begin(), end);
}

} // namespace

size_t largestOf(std::span<const float> scores) {
  constexpr size_t kLanes = 16; // which the compiler computes at once
  size_t i = 0;
  float largest[kLanes];
  std::ranges::fill(largest, kLeftOut);
  for (; i + kLanes <= scores.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      largest[lane] = scores[i + lane] > largest[lane] ? scores[i + lane] : largest[lane];
  for (; i < scores.size(); ++i)
    largest[0] = std::max(largest[0], scores[i]);
  return static_cast<size_t>(std::ranges::find(scores, *std::ranges::max_element(largest)) -
                             scores.begin());
}

std::vector<std::pair<int32_t, double>>
distributionOf(std::vector<float> scores, std::span<const int32_t> before, const Sampling &how) {
  if (how.repetitionPenalty != 1)
    punishRepeated(scores, {before.begin(), before.end()}, how.repetitionPenalty);
  const size_t best = largestOf(scores);
  if (how.temperature <= 0)
    return {{static_cast<int32_t>(best), 1.0}};
  keepLargest(scores, how.topK);
  const double largest = scores[best];
  std::vector<std::pair<int32_t, double>> shares;
  for (size_t i = 0; i < scores.size(); ++i)
    if (double share = std::exp((scores[i] - largest) / how.temperature); share > 0)
      shares.emplace_back(static_cast<int32_t>(i), share);
  if (how.topP < 1)
    keepLikeliest(shares, how.topP);
  std::erase_if(shares, [&](const auto &one) { return one.second < how.minP; });
  std::ranges::sort(shares);
  double whole = 0;
  for (const auto &[token, share] : shares)
    whole += share;
  for (auto &[token, share] : shares)
    share /= whole;
  return shares;
}

int32_t chooseToken(std::vector<float> scores, std::span<const int32_t> before,
                    const Sampling &how) {
  const auto shares = distributionOf(std::move(scores), before, how);
  double sum = 0, drawn = uniformAt(streamKey(static_cast<uint64_t>(how.seed), "generate"),
                                    static_cast<uint64_t>(before.size()));
  for (const auto &[token, share] : shares)
    if (sum += share; drawn < sum)
      return token;
  return std::ranges::max_element(shares, {}, &std::pair<int32_t, double>::second)->first;
}

} // namespace shardc::generate
