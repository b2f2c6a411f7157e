// A global batch size that changes during the run: by train.rampup_batch_size, with the formula of
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

/// Consecutive steps of one batch size.
struct BatchPhase {
  int64_t size = 1;      ///< samples per step
  int64_t firstStep = 0; ///< number of earlier steps of the run
  int64_t steps = 0;
  int64_t samplesBefore = 0; ///< number of earlier samples of the run

  int64_t lastStep() const { return firstStep + steps; }
  bool operator==(const BatchPhase &) const = default;
};

/// Maximum number of sizes in a run, since each size has a plan of its own.
inline constexpr size_t kBatchPhasesMax = 256;

/// A batch size that grows from `start` to `last` by equal increments, over the first `samples`
/// samples. All numbers are at least 1, and the increment divides the difference, which is not
/// negative.
struct BatchRamp {
  int64_t start = 1, increment = 1, samples = 1, last = 1;

  /// The size of the step that begins after `consumed` samples.
  int64_t sizeAfter(int64_t consumed) const;
};

/// The phases of a run of at most `samples` samples, which ends before a batch that would exceed
/// this limit. Returns at most kBatchPhasesMax + 1 phases; a result of that length means that there
/// are too many.
std::vector<BatchPhase> phasesOf(const BatchRamp &ramp, int64_t samples);

/// A size, and the sample of the run at which it begins.
struct BatchStep {
  int64_t firstSample = 0;
  int64_t size = 1;
  bool operator==(const BatchStep &) const = default;
};

/// The phases of a schedule of sizes, whose first samples ascend from 0.
std::vector<BatchPhase> phasesOf(const std::vector<BatchStep> &schedule, int64_t samples);

/// Parses entries `TOKENS:SIZE`, where K, M, B and T are thousands and so on, and divides the
/// tokens by the tokens of a sample. Empty if the text is not a schedule; `problem` then explains
/// why.
std::optional<std::vector<BatchStep>> parseSchedule(llvm::StringRef text, int64_t sequenceLength,
                                                    std::string &problem);
/// The schedule of batch sizes in the options; empty if there is none.
std::optional<std::vector<BatchStep>> scheduleOf(const Config &config);

/// The phases of a run of `samples` samples, by the option that sets them; empty if none does.
std::vector<BatchPhase> phasesOf(const Config &config, int64_t samples);

/// The option that requests changing batch sizes. If none does, train.rampup_batch_size.
Opt phasesOption(const Config &config);

/// The three numbers of the ramp in the options, with train.global_batch_size as the last size.
/// Empty if the options have no ramp, or if a number is below 1.
std::optional<BatchRamp> askedRamp(const Config &config);
/// Like askedRamp(), but empty if the numbers do not form a ramp to that size.
std::optional<BatchRamp> rampOf(const Config &config);

/// The configuration of the steps of one size: derived values that depend on the batch are those of
/// the phase.
Config atPhase(const Config &config, const BatchPhase &phase);

} // namespace shardc::config
