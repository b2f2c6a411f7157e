// Writes scalars of a run for TensorBoard, with the names of Megatron-Bridge (`training_log` in its
// train_utils.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"
#include "runtime/base/StepState.h"
#include "runtime/run/SaidText.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// Which scalars are logged, and how often: options of the recipe's section `logger`.
struct EventOptions {
  int64_t interval = 1;       ///< steps between two groups of scalars
  int64_t logInterval = 100;  ///< steps over which times are averaged
  int64_t windowSteps = 100;  ///< steps over which samples and tokens per second are averaged
  int64_t batchSize = 0;      ///< samples per step
  int64_t stepsBefore = 0;    ///< steps that had ended before
  int64_t samplesBefore = 0;  ///< samples that had been consumed before
  int64_t sequenceLength = 0; ///< tokens per sample
  int64_t worldSize = 1;
  double flopsPerToken = 0;   ///< per rank: the model's FLOPs divided by the number of ranks
  int64_t skippedSamples = 0; ///< samples that were skipped before this run
  bool lossScale = true;
  bool decoupledLr = false; ///< learning rate of embedding and output layer
  bool perplexity = false;  ///< perplexity of evaluations
  bool ranks = false;       ///< number of ranks
  bool times = false;       ///< seconds per step
  bool throughput = false;
};

/// Writes an event file: records in TFRecord format (length, its checksum, data, their checksum;
/// masked CRC-32C) with `Event` messages of TensorFlow's event.proto. Each group of scalars is
/// written with one call, so a run that is killed leaves complete records and at most one torn
/// record, which readers skip. Steps do not allocate.
class EventLog {
public:
  EventLog() = default;
  EventLog(const EventLog &) = delete;
  EventLog &operator=(const EventLog &) = delete;

  /// Creates the folder if needed, and a new file `events.out.tfevents.SECONDS.HOST.PROCESS.0` in
  /// it. Readers combine the files of a folder, also after a run was continued. Io, NotFound or
  /// Exhausted on failure.
  Status open(const std::string &folder, const EventOptions &options);
  bool isOpen() const { return file_.isOpen(); }

  /// Logs a step that has ended; `seconds` is its duration. A step whose update was skipped because
  /// of non-finite gradients has neither loss nor norm. `reported` has additional values of the
  /// plan.
  Status step(const StepState &state, double seconds, std::span<const NamedValue> reported = {});
  /// Notes that steps after `step` have `batchSize` samples.
  void grow(int64_t step, int64_t batchSize) {
    options_.samplesBefore = samplesUpTo(step);
    options_.stepsBefore = step;
    options_.batchSize = batchSize;
  }
  /// Notes that a step was skipped; its samples count as skipped.
  void skipped() { options_.skippedSamples += options_.batchSize; }
  /// Logs an evaluation that has ended. `set` is the name of the validation set if there are
  /// several.
  Status evaluated(const StepState &state, std::string_view set = {});
  /// Texts that the model wrote after an evaluation: `samples/1` and so on, as Markdown.
  Status said(int64_t step, std::span<const SaidText> texts);

private:
  int64_t samplesUpTo(int64_t step) const {
    return options_.samplesBefore + (step - options_.stepsBefore) * options_.batchSize;
  }
  void begin(int64_t step);
  void scalar(std::string_view tag, double value);
  void text(std::string_view tag, std::string_view markdown);
  void end();
  void training(const StepState &state, std::string_view suffix);
  void times(int64_t step);
  void speeds();
  Status write();

  Descriptor file_;
  std::string path_;
  EventOptions options_;
  std::string records_, event_,
      summary_;                ///< bytes of the group, of its event, of the event's summary
  std::vector<double> recent_; ///< ring with the seconds of the last steps
  int64_t steps_ = 0;          ///< steps that have ended in this run
  int64_t samplesSinceLogged_ = 0;
  double sinceLogged_ = 0; ///< seconds of steps since times were logged
  int64_t stepsSinceLogged_ = 0;
};

} // namespace shardc::run
