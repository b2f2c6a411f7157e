// Scalars of a run as TensorBoard reads them, with the names that Megatron-Bridge gives them
// (`training_log` of its train_utils.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/base/StepState.h"
#include "runtime/run/SaidText.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// The scalars that are logged, and how often: options of the recipe's section `logger`.
struct EventOptions {
  int64_t interval = 1;       ///< steps from one group of scalars to the next
  int64_t logInterval = 100;  ///< steps over which times are averaged
  int64_t windowSteps = 100;  ///< steps over which samples and tokens per second are averaged
  int64_t batchSize = 0;      ///< samples of a step
  int64_t stepsBefore = 0;    ///< that had ended
  int64_t samplesBefore = 0;  ///< that had been taken
  int64_t sequenceLength = 0; ///< tokens of a sample
  int64_t worldSize = 1;
  double flopsPerToken = 0;   ///< of one rank: the model's divided by the number of ranks
  int64_t skippedSamples = 0; ///< skipped before this run began
  bool lossScale = true;
  bool decoupledLr = false; ///< the rate of embedding and output layer
  bool perplexity = false;  ///< of evaluations
  bool ranks = false;       ///< the number of ranks
  bool times = false;       ///< seconds of a step
  bool throughput = false;
};

/// Writes one file of events: records of TFRecord's form (length, its checksum, data, their
/// checksum; CRC-32C, masked) with `Event` messages of TensorFlow's event.proto. Each group of
/// scalars is written with one call, so a run that is killed leaves complete records and at most
/// one torn one, which readers skip. Steps do not allocate.
class EventLog {
public:
  EventLog() = default;
  ~EventLog();
  EventLog(const EventLog &) = delete;
  EventLog &operator=(const EventLog &) = delete;

  /// Makes the folder if needed, and in it a new file,
  /// `events.out.tfevents.SECONDS.HOST.PROCESS.0`. Readers show the files of a folder together,
  /// those of a run that continues too. Io, NotFound or Exhausted if that fails.
  Status open(const std::string &folder, const EventOptions &options);
  bool isOpen() const { return fd_ >= 0; }

  /// A step has ended; `seconds` is the time that it took. A step that was skipped, because its
  /// gradients were not finite, has neither loss nor norm. `told` is what the plan reports beside
  /// it.
  Status step(const StepState &state, double seconds, std::span<const NamedValue> reported = {});
  /// The steps after this one have so many samples.
  void grow(int64_t step, int64_t batchSize) {
    options_.samplesBefore = samplesUpTo(step);
    options_.stepsBefore = step;
    options_.batchSize = batchSize;
  }
  /// A step was skipped: its samples count as skipped.
  void skipped() { options_.skippedSamples += options_.batchSize; }
  /// An evaluation has ended, of a set that has a name if there are several.
  Status evaluated(const StepState &state, std::string_view set = {});
  /// Texts behind an evaluation: `samples/1` and so on, as Markdown.
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

  int fd_ = -1;
  std::string path_;
  EventOptions options_;
  std::string records_, event_,
      summary_;                ///< bytes of the group, of its event, of the event's summary
  std::vector<double> recent_; ///< seconds of the last steps, a ring
  int64_t steps_ = 0;          ///< that have ended in this run
  int64_t samplesSinceLogged_ = 0;
  double sinceLogged_ = 0; ///< seconds of the steps since times were logged
  int64_t stepsSinceLogged_ = 0;
};

} // namespace shardc::run
