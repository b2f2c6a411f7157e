// Steps of a job that a run passes over: their samples count as consumed, and nothing else happens.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// The numbers of `train.iterations_to_skip`, ascending, each once; steps count from 1. Nothing if
/// the plan says something else than whole numbers.
inline std::optional<std::vector<int64_t>> skippedSteps(const Job &job) {
  std::vector<int64_t> steps;
  for (std::string_view text : job.train.iterationsToSkip) {
    int64_t step = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc() || end != text.data() + text.size())
      return std::nullopt;
    steps.push_back(step);
  }
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

/// How many of these steps come behind step `begin`, up to step `end`.
inline int64_t countSkipped(const std::vector<int64_t> &steps, int64_t begin, int64_t end) {
  auto upTo = [&](int64_t step) { return std::ranges::upper_bound(steps, step) - steps.begin(); };
  return std::max<int64_t>(upTo(end) - upTo(begin), 0);
}

} // namespace shardc::plan
