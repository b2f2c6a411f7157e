// Measures speed over recent steps and formats the lines. On a terminal, the line is redrawn at
// most every kRedrawSeconds.
#include "runtime/run/ProgressOutput.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "runtime/base/Reports.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
namespace {

constexpr double kRedrawSeconds = 0.1;

/// Builds the text of one line. Allocates only for long lines.
class Text {
public:
  template <typename... Args> Text &add(fmt::format_string<Args...> text, Args &&...args) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Args>(args)...);
    return *this;
  }
  /// Adds a duration such as `0:42` or `3:07:12`.
  Text &duration(double seconds) {
    auto total = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) + 0.5);
    return total >= 3600 ? add("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60)
                         : add("{}:{:02}", total / 60, total % 60);
  }
  /// Adds an amount such as `950`, `12.3k` or `4.56M`.
  Text &amount(double value) {
    return value >= 1e6   ? add("{:.2f}M", value / 1e6)
           : value >= 1e3 ? add("{:.1f}k", value / 1e3)
                          : add("{:.0f}", value);
  }
  void write(std::FILE *out) const { std::fwrite(buffer_.data(), 1, buffer_.size(), out); }

private:
  fmt::basic_memory_buffer<char, 512> buffer_;
};

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

} // namespace

void ProgressOutput::begin(int64_t firstStep, int64_t stepsTotal) {
  if (hasBegun_) {
    last_ = Clock::now();
    return;
  }
  hasBegun_ = true;
  firstStep_ = firstStep;
  stepsTotal_ = stepsTotal;
  begin_ = last_ = Clock::now();
  lastShown_ = begin_ - std::chrono::hours(1);
}

/// Called once per step that ended, with its state. The duration is the device's if it recorded
/// one. Metrics and event files get every step, the terminal only some.
void ProgressOutput::step(const StepState &state) {
  if (options_.lastStep)
    options_.lastStep->store(static_cast<uint64_t>(state.step), std::memory_order_relaxed);
  Clock::time_point now = Clock::now();
  double took = took_.value_or(seconds(now - last_));
  took_.reset();
  last_ = now;
  training_ += took;
  if (stepsSeen_++ == 0)
    firstLoss_ = state.loss;
  lastLoss_ = state.loss;
  countSkipped(state);
  // If the device records no time, the host's time is used. The host reads steps back in batches,
  // so the speed is averaged over recent steps.
  size_t at = static_cast<size_t>(stepsSeen_ - 1) % recent_.size();
  recent_[at] = took;
  recentTokens_[at] = options_.tokensPerStep;
  tokens_ += options_.tokensPerStep;
  auto counted = std::min<int64_t>(stepsSeen_, static_cast<int64_t>(recent_.size()));
  double window = std::accumulate(recent_.begin(), recent_.begin() + counted, 0.0);
  auto tokens = static_cast<double>(
      std::accumulate(recentTokens_.begin(), recentTokens_.begin() + counted, int64_t{0}));
  if (options_.metrics)
    keep(options_.metrics->step(state, speedOf(window > 0 ? tokens / window : 0), options_.fields,
                                reported_));
  if (options_.events)
    keep(options_.events->step(state, took, reported_));
  reported_ = {};
  bool isPlain =
      state.step % options_.logInterval == 0 || state.step == stepsTotal_ || stepsSeen_ == 1;
  bool isDue = options_.isTerminal && seconds(now - lastShown_) >= kRedrawSeconds;
  if (!isPlain && !isDue)
    return;
  // The average over all steps since the last plain line, since single steps vary.
  double since = training_ - shownTraining_;
  show(state, since > 0 ? static_cast<double>(tokens_ - shownTokens_) / since : 0);
  lastShown_ = now;
  if (!isPlain)
    return;
  shownTraining_ = training_;
  shownTokens_ = tokens_;
  clearLine();
}

/// Counts skipped updates. Overflows of a loss scale that is too large, and single norms that are
/// too large, are normal. Many in a row are not, so a warning is printed.
void ProgressOutput::countSkipped(const StepState &state) {
  bool isLarge = state.skip && !state.nonfinite;
  skipped_ += state.skip ? 1 : 0;
  overflowsInRow_ = state.nonfinite ? overflowsInRow_ + 1 : 0;
  largeNormsInRow_ = isLarge ? largeNormsInRow_ + 1 : 0;
  if (!state.skip || options_.isQuiet)
    return;
  if ((isLarge ? largeNormsInRow_ : overflowsInRow_) % kOverflowsMax != 0)
    return;
  clearLine();
  if (isLarge)
    options_.emit(makeReport(report::LargeNormsSkipped, state.step, largeNormsInRow_,
                             static_cast<double>(state.gradNorm)));
  else
    options_.emit(makeReport(report::StepsSkipped, state.step, overflowsInRow_, state.lossScale));
}

void ProgressOutput::skipped(const StepState &state) {
  if (options_.lastStep)
    options_.lastStep->store(static_cast<uint64_t>(state.step), std::memory_order_relaxed);
  ++stepsSkipped_;
  if (options_.metrics)
    keep(options_.metrics->skipped(state));
  if (options_.events)
    options_.events->skipped();
  if (options_.isQuiet)
    return;
  clearLine();
  Text text;
  text.add("step {}/{}  skipped, as train.iterations_to_skip asks\n", state.step, stepsTotal_);
  text.write(options_.out);
  flush();
}

void ProgressOutput::flush() {
  if (std::fflush(options_.out) != 0 && errno == EPIPE && options_.readerGone)
    options_.readerGone();
}

Speed ProgressOutput::speedOf(double tokensPerSecond) const {
  double flops = tokensPerSecond * options_.flopsPerToken;
  Speed speed(tokensPerSecond, flops / 1e12,
              options_.peakFlops > 0 ? flops / options_.peakFlops : 0);
  speed.host = host_;
  return speed;
}

void ProgressOutput::show(const StepState &state, double tokensPerSecond) {
  if (options_.isQuiet)
    return;
  Text text;
  if (options_.isTerminal)
    text.add("\r");
  text.add("step {}/{}  loss {:.4f}  lr {:.3e}  ", state.step, stepsTotal_, state.loss, state.lr);
  if (state.nonfinite) // an overflow has no norm
    text.add("grad norm overflow  ");
  else
    text.add("grad norm {:.3f}  ", state.gradNorm);
  if (options_.fields.lossScale)
    text.add("loss scale {:g}  ", state.lossScale);
  if (options_.fields.skipped)
    text.add("skipped {}  ", skipped_);
  text.amount(tokensPerSecond).add(" tokens/s  ").duration(secondsLeft(state.step)).add(" left");
  text.add("{}", options_.isTerminal ? "\x1b[K" : "\n");
  text.write(options_.out);
  flush();
  lineIsOpen_ = options_.isTerminal;
}

double ProgressOutput::secondsLeft(int64_t step) const {
  int64_t done = step - firstStep_;
  return done > 0 ? seconds(last_ - begin_) / static_cast<double>(done) *
                        static_cast<double>(stepsTotal_ - step)
                  : 0;
}

void ProgressOutput::clearLine() {
  if (lineIsOpen_)
    std::fputc('\n', options_.out);
  lineIsOpen_ = false;
}

void ProgressOutput::saved() { last_ = Clock::now(); } // a save is not training time

void ProgressOutput::evaluated(const StepState &state) {
  last_ = Clock::now(); // an evaluation is not training time
  std::string_view set =
      options_.sets.empty() ? std::string_view() : options_.sets[static_cast<size_t>(what_.set)];
  if (options_.metrics)
    keep(options_.metrics->evaluated(state, set, what_.isTest));
  if (options_.events && !what_.isTest) // upstream prints the test loss, but logs no event for it
    keep(options_.events->evaluated(state, set));
  if (options_.isQuiet)
    return;
  clearLine();
  Text text;
  if (what_.isTest)
    text.add("test after step {}  loss {:.4f}\n", state.step, state.evalLoss);
  else if (!set.empty())
    text.add("evaluation after step {} of '{}'  loss {:.4f}\n", state.step, set, state.evalLoss);
  else
    text.add("evaluation after step {}  loss {:.4f}\n", state.step, state.evalLoss);
  text.write(options_.out);
  flush();
}

void ProgressOutput::said(int64_t step, std::span<const SaidText> texts) {
  last_ = Clock::now(); // generating them does not count as training time
  for (size_t i = 0; options_.metrics && i < texts.size(); ++i)
    keep(options_.metrics->said(step, static_cast<int64_t>(i) + 1, texts[i]));
  if (options_.events)
    keep(options_.events->said(step, texts));
  if (options_.isQuiet)
    return;
  clearLine();
  Text text;
  for (size_t i = 0; i < texts.size(); ++i) {
    text.add("sample {} after step {}\n", i + 1, step);
    text.add("  prompt  {}\n", plan::printable(texts[i].prompt));
    text.add("  model   {}\n", plan::printable(texts[i].said));
    text.add("  data    {}\n", plan::printable(texts[i].data));
  }
  text.write(options_.out);
  flush();
}

/// Metrics and events end with their first failure; training does not depend on them.
void ProgressOutput::keep(Status status) {
  if (status.isOk())
    return;
  metricsStatus_ = std::move(status);
  clearLine();
  options_.emit(metricsStatus_.report());
}

void ProgressOutput::finishMetrics() {
  if (Status status = options_.metrics ? options_.metrics->finish() : Status::ok();
      metricsStatus_.isOk())
    keep(std::move(status));
}

/// Prints the summary of the run. A file that could not be written makes it "ended with errors".
void ProgressOutput::end(const RunResult &result, bool isAllWritten) {
  if (options_.isQuiet)
    return;
  clearLine();
  Text text;
  std::string_view how = result.isStopped ? "stopped" : isAllWritten ? "done" : "ended with errors";
  if (firstStep_ > stepsTotal_)
    text.add("done after {} steps, more than the {} asked for, in ", firstStep_, stepsTotal_);
  else
    text.add("{} after {} of {} steps in ", how, firstStep_ + stepsSeen_ + stepsSkipped_,
             stepsTotal_);
  text.duration(seconds(Clock::now() - begin_));
  if (stepsSeen_ > 0)
    text.add("  loss {:.4f} -> {:.4f}", firstLoss_, lastLoss_);
  if (training_ > 0) {
    text.add("  ").amount(static_cast<double>(tokens_) / training_).add(" tokens/s");
  }
  text.add("\n");
  if (result.memory && result.memory->used > 0)
    text.add("device memory {} in use; since the first step {:+} bytes, {} allocations\n",
             plan::formatBytes(result.memory->used), result.memory->growth,
             result.memory->allocations);
  if (result.memory && result.memory->arenasMost > 0)
    text.add("arenas of {} rank{}: {} to {} bytes, in use within {}\n", result.memory->ranks,
             result.memory->ranks == 1 ? "" : "s", result.memory->arenasLeast,
             result.memory->arenasMost, result.memory->arenasOff);
  text.write(options_.out);
  flush();
}

} // namespace shardc::run
