// A global batch size that changes over the run: by train.rampup_batch_size, with the formula of
// Megatron-Core's RampupBatchsizeNumMicroBatchesCalculator, or by train.step_batch_size_schedule,
// with that of its StepBatchsizeNumMicroBatchesCalculator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace shardc::config {

class Config;
enum class Opt : uint16_t;

/// Steps of one batch size that follow each other.
struct BatchPhase {
  int64_t size = 1;      ///< samples of a step
  int64_t firstStep = 0; ///< steps of the run before these
  int64_t steps = 0;
  int64_t samplesBefore = 0; ///< samples of the run before these steps

  int64_t lastStep() const { return firstStep + steps; }
  bool operator==(const BatchPhase &) const = default;
};

/// Each size of a run is a plan of its own.
inline constexpr size_t kBatchPhasesMax = 256;

/// A batch size that grows from `start` to `last` in equal increments, each after as many samples.
/// All are at least 1, and the increment divides the difference, which is not negative.
struct BatchRamp {
  int64_t start = 1, increment = 1, samples = 1, last = 1;

  /// The size of the step that begins after so many samples.
  int64_t sizeAfter(int64_t consumed) const;
};

/// The phases of a run of so many samples: whole batches, none beyond these samples. Returns at
/// most one more than kBatchPhasesMax, which means that there are too many.
std::vector<BatchPhase> phasesOf(const BatchRamp &ramp, int64_t samples);

/// A size, and the sample of the run with which it begins.
struct BatchStep {
  int64_t firstSample = 0;
  int64_t size = 1;
  bool operator==(const BatchStep &) const = default;
};

/// The same for sizes that begin with a sample each, ascending from 0.
std::vector<BatchPhase> phasesOf(const std::vector<BatchStep> &schedule, int64_t samples);

/// Reads entries `TOKENS:SIZE`, where K, M, B and T stand for thousands and so on, and divides the
/// tokens by those of a sample. Nothing if this is no schedule, which `problem` then explains.
std::optional<std::vector<BatchStep>> parseSchedule(llvm::StringRef text, int64_t sequenceLength,
                                                    std::string &problem);
/// The schedule of batch sizes in the options, if they give one.
std::optional<std::vector<BatchStep>> scheduleOf(const Config &config);

/// The phases of a run of so many samples, by whichever option sets them; empty if none does.
std::vector<BatchPhase> phasesOf(const Config &config, int64_t samples);

/// The option that requests changing batch sizes, if one does.
Opt phasesOption(const Config &config);

/// The three numbers of the options' ramp, with train.global_batch_size as the last size; nothing
/// if the options have no ramp, or if a number is below 1.
std::optional<BatchRamp> askedRamp(const Config &config);
/// The same if it is a ramp to that size.
std::optional<BatchRamp> rampOf(const Config &config);

/// The configuration of a run's steps of one size: of its derived facts, those about the batch are
/// the phase's.
Config atPhase(const Config &config, const BatchPhase &phase);

} // namespace shardc::config
