#include "compiler/config/BatchRamp.h"

#include <algorithm>

#include "compiler/config/Config.h"

namespace shardc::config {
namespace {

/// Of at most `most` steps of one size those before the size grows.
int64_t stepsOf(const BatchRamp &ramp, int64_t size, int64_t consumed, int64_t most) {
  int64_t within = 0, beyond = most; // the size is the same after `within` steps
  if (ramp.sizeAfter(consumed + most * size) == size)
    return most;
  while (beyond - within > 1) {
    int64_t middle = within + (beyond - within) / 2;
    (ramp.sizeAfter(consumed + middle * size) == size ? within : beyond) = middle;
  }
  return beyond;
}

} // namespace

/// In floating point as upstream, whose roundings decide where a size begins.
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
