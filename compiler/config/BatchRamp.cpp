#include "compiler/config/BatchRamp.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "compiler/config/Config.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {
namespace {

/// The number of steps of `size` samples before the size changes; at most `most`.
int64_t stepsOf(const BatchRamp &ramp, int64_t size, int64_t consumed, int64_t most) {
  int64_t within = 0, beyond = most; // the size is unchanged after `within` steps
  if (ramp.sizeAfter(consumed + most * size) == size)
    return most;
  while (beyond - within > 1) {
    int64_t middle = within + (beyond - within) / 2;
    (ramp.sizeAfter(consumed + middle * size) == size ? within : beyond) = middle;
  }
  return beyond;
}

/// Parses a number with an optional suffix, truncated like upstream. Empty if it is negative or
/// larger than any run.
std::optional<int64_t> parseCount(llvm::StringRef text) {
  constexpr double kMost = 1e18;
  text = text.trim();
  double factor = 1;
  for (auto [suffix, value] : {std::pair('k', 1e3), {'m', 1e6}, {'b', 1e9}, {'t', 1e12}})
    if (!text.empty() && llvm::toLower(text.back()) == suffix) {
      factor = value;
      text = text.drop_back();
      break;
    }
  double number = 0;
  if (text.empty() || text.getAsDouble(number) || !(number >= 0) || number * factor > kMost)
    return std::nullopt;
  return static_cast<int64_t>(number * factor);
}

} // namespace

/// Uses floating point, like upstream, because its rounding decides at which sample a size begins.
int64_t BatchRamp::sizeAfter(int64_t consumed) const {
  int64_t increments = (last - start) / increment;
  if (consumed > samples || increments == 0)
    return last;
  double each = static_cast<double>(samples) / static_cast<double>(increments);
  return start + static_cast<int64_t>(static_cast<double>(consumed) / each) * increment;
}

std::vector<BatchPhase> phasesOf(const BatchRamp &ramp, int64_t samples) {
  std::vector<BatchPhase> phases;
  BatchPhase next;
  while (phases.size() <= kBatchPhasesMax) {
    next.size = ramp.sizeAfter(next.samplesBefore);
    int64_t most = (samples - next.samplesBefore) / next.size;
    if (most == 0)
      break;
    next.steps = stepsOf(ramp, next.size, next.samplesBefore, most);
    phases.push_back(next);
    next.firstStep = next.lastStep();
    next.samplesBefore += next.steps * next.size;
  }
  return phases;
}

std::vector<BatchPhase> phasesOf(const std::vector<BatchStep> &schedule, int64_t samples) {
  std::vector<BatchPhase> phases;
  BatchPhase next;
  for (size_t i = 0; i < schedule.size() && phases.size() <= kBatchPhasesMax; ++i) {
    int64_t end = i + 1 < schedule.size() ? std::min(schedule[i + 1].firstSample, samples)
                                          : std::numeric_limits<int64_t>::max();
    next.size = schedule[i].size;
    int64_t most = (samples - next.samplesBefore) / next.size, left = end - next.samplesBefore;
    if (left <= 0) // the larger steps of earlier sizes reached beyond this size's end
      continue;
    int64_t wanted = left / next.size + (left % next.size > 0);
    next.steps = std::min(most, wanted);
    if (next.steps > 0 && !phases.empty() && phases.back().size == next.size)
      phases.back().steps += next.steps;
    else if (next.steps > 0)
      phases.push_back(next);
    if (most < wanted) // the run has too few samples for another step
      break;
    next.firstStep += next.steps;
    next.samplesBefore += next.steps * next.size;
  }
  return phases;
}

std::optional<std::vector<BatchStep>> parseSchedule(llvm::StringRef text, int64_t sequenceLength,
                                                    std::string &problem) {
  std::vector<BatchStep> schedule;
  std::string spaced = text.str();
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  llvm::SmallVector<llvm::StringRef> entries;
  llvm::SplitString(spaced, entries, " \t\n");
  for (llvm::StringRef entry : entries) {
    auto [tokens, size] = entry.split(':');
    std::optional<int64_t> from = parseCount(tokens), batch = parseCount(size);
    if (!from || !batch || *batch < 1) {
      problem = fmt::format("'{}' is not such an entry", entry.str());
      return std::nullopt;
    }
    schedule.push_back({*from / std::max<int64_t>(sequenceLength, 1), *batch});
  }
  std::stable_sort(schedule.begin(), schedule.end(), [](const BatchStep &a, const BatchStep &b) {
    return a.firstSample < b.firstSample;
  });
  auto same = std::adjacent_find(
      schedule.begin(), schedule.end(),
      [](const BatchStep &a, const BatchStep &b) { return a.firstSample == b.firstSample; });
  if (schedule.empty())
    problem = "there is none";
  else if (schedule.front().firstSample != 0)
    problem = fmt::format("the first one begins at sample {}", schedule.front().firstSample);
  else if (same != schedule.end())
    problem = fmt::format("two begin at sample {}", same->firstSample);
  else
    return schedule;
  return std::nullopt;
}

std::optional<std::vector<BatchStep>> scheduleOf(const Config &config) {
  if (!config.has(Opt::TrainStepBatchSizeSchedule))
    return std::nullopt;
  std::string problem;
  return parseSchedule(config.getString(Opt::TrainStepBatchSizeSchedule),
                       config.getIntOr(Opt::ModelSeqLength, 1), problem);
}

Opt phasesOption(const Config &config) {
  return config.has(Opt::TrainStepBatchSizeSchedule) ? Opt::TrainStepBatchSizeSchedule
                                                     : Opt::TrainRampupBatchSize;
}

std::vector<BatchPhase> phasesOf(const Config &config, int64_t samples) {
  if (std::optional<std::vector<BatchStep>> schedule = scheduleOf(config))
    return phasesOf(*schedule, samples);
  std::optional<BatchRamp> ramp = rampOf(config);
  return ramp ? phasesOf(*ramp, samples) : std::vector<BatchPhase>();
}

std::optional<BatchRamp> askedRamp(const Config &config) {
  if (!config.has(Opt::TrainRampupBatchSize) || !config.has(Opt::TrainGlobalBatchSize))
    return std::nullopt;
  const Value::List &list = config.getList(Opt::TrainRampupBatchSize);
  if (list.size() != 3)
    return std::nullopt;
  BatchRamp asked{*list[0].asInt(), *list[1].asInt(), *list[2].asInt(),
                  config.getInt(Opt::TrainGlobalBatchSize)};
  bool isPositive = std::min({asked.start, asked.increment, asked.samples}) >= 1;
  return isPositive ? std::optional(asked) : std::nullopt;
}

std::optional<BatchRamp> rampOf(const Config &config) {
  std::optional<BatchRamp> asked = askedRamp(config);
  bool isRamp =
      asked && asked->last >= asked->start && (asked->last - asked->start) % asked->increment == 0;
  return isRamp ? asked : std::nullopt;
}

Config atPhase(const Config &config, const BatchPhase &phase) {
  Config of = config;
  Derived derived = config.derived();
  derived.phase = phase;
  derived.numMicrobatches =
      std::max<int64_t>(phase.size / (derived.microBatch * derived.dataParallel), 1);
  of.setDerived(derived);
  return of;
}

} // namespace shardc::config
