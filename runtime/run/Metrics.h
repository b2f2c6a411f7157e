// Writes metrics for other programs: one JSON object per step and line, to a file or to a program's
// standard input.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"
#include "runtime/base/StepState.h"
#include "runtime/run/HostTimer.h"
#include "runtime/run/SaidText.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// Speed of a step: of the whole run, and of one rank's device.
struct Speed {
  Speed(double tokens, double tflops = 0, double share = 0)
      : tokensPerSecond(tokens), modelTflops(tflops), utilization(share) {}
  double tokensPerSecond;
  double modelTflops; ///< model TFLOP/s of a device; 0: unknown
  double utilization; ///< share of the device's peak; 0: unknown
  HostTime host;      ///< host time to enqueue the step
};

/// The command if `path` is `| COMMAND`. Its standard input receives the lines. Nothing if `path`
/// names a file.
std::optional<std::string> metricsCommand(const std::string &path);

/// Values of a step that are reported in addition to loss, learning rate, norm and tokens.
struct MetricsFields {
  bool lossScale = false;   ///< for the next step
  bool skipped = false;     ///< 1 if the update was skipped
  bool decoupledLr = false; ///< learning rate of embedding and output layer
  bool weightDecay = false;
};

/// Writes metrics lines. Each line is written with one call, so it is complete.
class MetricsWriter {
public:
  MetricsWriter() = default;
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter &) = delete;
  MetricsWriter &operator=(const MetricsWriter &) = delete;

  /// Opens the file for appending, and creates it if needed. For `| COMMAND`, starts the command
  /// with /bin/sh. Io, NotFound or Exhausted on failure.
  Status open(const std::string &path);
  /// Empties the file, whose lines belong to another run.
  void clear();
  bool isOpen() const { return file_.isOpen(); }
  /// Closes the file, or the command's input, and waits until the command ends. MetricsLost if it
  /// fails.
  Status finish();

  /// Writes {"step":3,"loss":2.5,"lr":0.001,"grad_norm":1.5,"tokens":512,"tokens_per_s":1000.0,
  /// "model_tflops":412.5,"mfu":0.417,"host_ms":0.25,"host_wait_ms":9.5}. `tokens` is the number of
  /// tokens in the loss. Depending on `fields`, adds "loss_scale":65536.0,"skipped":0,
  /// "decoupled_lr":0.002,"weight_decay":0.05, and the additional values of the plan. Unknown
  /// values are omitted, and non-finite values are null. All digits are written.
  Status step(const StepState &state, const Speed &speed, const MetricsFields &fields = {},
              std::span<const NamedValue> reported = {});
  /// Writes {"step":3,"skipped":1} for a step that the recipe skips.
  Status skipped(const StepState &state);
  /// Writes {"step":3,"from_memory":1,"seconds_lost":2.5}: a restart continues after that step from
  /// state in memory. The seconds are those since the end of the step.
  Status restored(int64_t step, double secondsLost);
  /// Writes {"step":3,"eval_loss":2.5} for an evaluation after that step, with "set":"name" if
  /// there are several validation sets, or {"step":3,"test_loss":2.5} for the test data.
  Status evaluated(const StepState &state, std::string_view set = {}, bool isTest = false);
  /// {"step":3,"sample":1,"prompt":"...","said":"...","data":"..."}: a text that the model wrote
  /// after an evaluation; texts are numbered from 1.
  Status said(int64_t step, int64_t number, const SaidText &text);

private:
  Status write(const char *line, size_t bytes);

  Status start(const std::string &command);

  Descriptor file_;
  pid_t program_ = 0; ///< the program that receives the lines; 0: none
  std::string path_;
};

} // namespace shardc::run
