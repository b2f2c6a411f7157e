// The metrics: one JSON object per step, one per line, for other programs: in a file, or given to a
// program.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>

#include "runtime/base/Status.h"
#include "runtime/base/StepState.h"
#include "runtime/run/HostTimer.h"
#include "runtime/run/SaidText.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// Speed of a step, of the whole run and of one rank's device.
struct Speed {
  Speed(double tokens, double tflops = 0, double share = 0)
      : tokensPerSecond(tokens), modelTflops(tflops), utilization(share) {}
  double tokensPerSecond;
  double modelTflops; ///< model operations of a device, 1e12 per second; 0: unknown
  double utilization; ///< the same as a share of the device's peak; 0: unknown
  HostTime host;      ///< host time to enqueue the step
};

/// If `path` is `| COMMAND`, the command, whose standard input receives the lines; nothing if it is
/// the path of a file.
std::optional<std::string> metricsCommand(const std::string &path);

/// The values of a step that are reported in addition to loss, rate, norm and tokens.
struct MetricsFields {
  bool lossScale = false;   ///< of the next step
  bool skipped = false;     ///< 1 if the update was left out
  bool decoupledLr = false; ///< the rate of embedding and output layer
  bool weightDecay = false;
};

/// Writes metrics lines one at a time. Each line is written with one call, so it is complete.
class MetricsWriter {
public:
  MetricsWriter() = default;
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter &) = delete;
  MetricsWriter &operator=(const MetricsWriter &) = delete;

  /// Creates the file; lines are added to one that exists. Of `| COMMAND`, starts the command by
  /// /bin/sh, with the lines as its input; the destructor ends the input and waits for its end.
  /// Io, NotFound or Exhausted if that fails.
  Status open(const std::string &path);
  /// Empties the file: its lines are another run's.
  void clear();
  bool isOpen() const { return fd_ >= 0; }

  /// {"step":3,"loss":2.5,"lr":0.001,"grad_norm":1.5,"tokens":512,"tokens_per_s":1000.0,
  /// "model_tflops":412.5,"mfu":0.417,"host_ms":0.25,"host_wait_ms":9.5}. `tokens` is the number
  /// that the loss counts. As `fields` says, also "loss_scale":65536.0,"skipped":0,
  /// "decoupled_lr":0.002,"weight_decay":0.05, and what the plan reports beside its state. What is
  /// not known is left out, what is not finite is null; all digits are written.
  Status step(const StepState &state, const Speed &speed, const MetricsFields &fields = {},
              std::span<const NamedValue> reported = {});
  /// {"step":3,"skipped":1}: the recipe skips that step.
  Status skipped(const StepState &state);
  /// {"step":3,"from_memory":1,"seconds_lost":2.5}: a restart goes on after that step from state
  /// in memory; the seconds are since the step had ended.
  Status restored(int64_t step, double secondsLost);
  /// {"step":3,"eval_loss":2.5}: an evaluation after that step, of several sets with "set":"name";
  /// {"step":3,"test_loss":2.5}: of the test data.
  Status evaluated(const StepState &state, std::string_view set = {}, bool isTest = false);
  /// {"step":3,"sample":1,"prompt":"...","said":"...","data":"..."}: a text behind an evaluation;
  /// texts count from 1.
  Status said(int64_t step, int64_t number, const SaidText &text);

private:
  Status write(const char *line, size_t bytes);

  Status start(const std::string &command);

  int fd_ = -1;
  pid_t program_ = 0; ///< that takes the lines; 0: none
  std::string path_;
};

} // namespace shardc::run
