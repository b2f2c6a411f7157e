// The progress output of a run: a line that is rewritten on a terminal, or plain lines at intervals
// elsewhere. Also writes the metrics file.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>

#include "runtime/run/EventLog.h"
#include "runtime/run/Metrics.h"
#include "runtime/run/RunLoop.h"

namespace shardc::run {

struct ProgressOptions {
  std::FILE *out = stdout;
  bool isTerminal = false;
  int64_t logInterval = 100; ///< steps between two plain lines
  int64_t tokensPerStep = 0; ///< tokens that the model processes, including padding
  double flopsPerToken = 0;  ///< per rank: the model's FLOPs divided by the number of ranks
  double peakFlops = 0;      ///< peak FLOPS of one rank's device; 0: unknown
  MetricsWriter *metrics = nullptr;
  EventLog *events = nullptr;
  std::function<void()> readerGone;          ///< called once if nobody reads `out` any more
  ReportSink emit;                           ///< receives failures to write metrics or events
  std::vector<std::string> sets;             ///< names of validation sets, if there are several
  MetricsFields fields;                      ///< reported in addition to the standard values
  bool isQuiet = false;                      ///< prints nothing, since another process does
  std::atomic<uint64_t> *lastStep = nullptr; ///< last step of the job that has ended here
};

class ProgressOutput final : public RunObserver {
public:
  explicit ProgressOutput(const ProgressOptions &options) : options_(options) {}

  /// A later call means that another plan continues the run.
  void begin(int64_t firstStep, int64_t stepsTotal) override;
  void step(const StepState &state) override;
  void skipped(const StepState &state) override;
  void evaluated(const StepState &state) override;
  void evaluating(const Evaluated &what) override { what_ = what; }
  void saved() override;
  /// Texts that the model wrote after the evaluation of this step.
  void said(int64_t step, std::span<const SaidText> texts);
  void queued(const HostTime &time) override { host_ = time; }
  void reported(std::span<const NamedValue> values) override { reported_ = values; }
  void took(double seconds) override { took_ = seconds; }
  /// Sets the number of tokens for the following steps.
  void grow(int64_t tokensPerStep) { options_.tokensPerStep = tokensPerStep; }
  /// Prints the last line: the number of steps, and how the loss has fallen. `isAllWritten` says
  /// whether all metrics and the last state were written.
  void end(const RunResult &result, bool isAllWritten);
  /// Ends the line that is being rewritten, so that other output begins on a new line.
  void clearLine();

  /// Ends metrics, and waits for the command that receives them.
  void finishMetrics();
  /// The reason if metrics are incomplete; otherwise ok.
  const Status &metricsStatus() const { return metricsStatus_; }

private:
  using Clock = std::chrono::steady_clock;
  void flush();

  Speed speedOf(double tokensPerSecond) const;
  void show(const StepState &state, double tokensPerSecond);
  void keep(Status status);
  void countSkipped(const StepState &state);
  double secondsLeft(int64_t step) const;

  ProgressOptions options_;
  Status metricsStatus_;
  int64_t firstStep_ = 0, stepsTotal_ = 0;
  Clock::time_point begin_, last_, lastShown_;
  double training_ = 0;                   ///< seconds of steps, without evaluations
  double shownTraining_ = 0;              ///< value of training_ at the last plain line
  int64_t tokens_ = 0;                    ///< of all steps
  int64_t shownTokens_ = 0;               ///< value of tokens_ at the last plain line
  std::array<double, 8> recent_{};        ///< seconds of the last steps, for tokens per second
  std::array<int64_t, 8> recentTokens_{}; ///< tokens of these steps
  Evaluated what_;                        ///< data of the next evaluation
  bool hasBegun_ = false;
  double firstLoss_ = 0, lastLoss_ = 0;
  int64_t stepsSeen_ = 0;
  int64_t stepsSkipped_ = 0;
  int64_t skipped_ = 0;                  ///< steps whose update was skipped
  int64_t overflowsInRow_ = 0;           ///< steps with non-finite gradients
  int64_t largeNormsInRow_ = 0;          ///< steps with a norm above the job's limit
  HostTime host_;                        ///< of the step that ends next
  std::span<const NamedValue> reported_; ///< of the step that ends next
  std::optional<double> took_;           ///< device seconds of the step that ends next
  bool lineIsOpen_ = false;
};

} // namespace shardc::run
