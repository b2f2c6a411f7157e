// Records all work of some steps in the middle of a run.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/exec/Executable.h"

namespace shardc::run {

class StepTracer {
public:
  /// Receives the work and the number of steps. If empty, nothing is recorded.
  using Take = std::function<Status(std::vector<trace::Span> spans, int steps)>;
  StepTracer(exec::Executable &executable, const Take &take)
      : executable_(executable), take_(take) {}

  /// Whether begin() is due before this iteration, in a run with iterations from `first` to `last`.
  bool isDueBefore(int64_t iteration, int64_t first, int64_t last) const {
    return take_ && end_ == 0 && iteration >= std::min(first + kStepsBefore, last - kStepsTraced);
  }
  /// Starts the trace at this iteration, after waiting for all earlier steps. Within the trace,
  /// steps may overlap as usual.
  Status begin(int64_t iteration, int64_t last) {
    RETURN_IF_ERROR(executable_.backend().synchronize());
    begin_ = iteration;
    end_ = std::min(iteration + kStepsTraced, last);
    return executable_.backend().startTrace();
  }
  bool isDueAfter(int64_t iteration) const { return take_ && iteration + 1 == end_; }
  /// Ends the trace, after waiting for all its steps.
  Status end() {
    RETURN_IF_ERROR(executable_.backend().synchronize());
    ASSIGN_OR_RETURN(std::vector<trace::Span> spans, executable_.backend().stopTrace());
    return take_(std::move(spans), static_cast<int>(end_ - begin_));
  }

private:
  static constexpr int64_t kStepsBefore = 6; ///< steps before the trace
  static constexpr int64_t kStepsTraced = 3;

  exec::Executable &executable_;
  const Take &take_;
  int64_t begin_ = 0, end_ = 0; ///< steps; end_ is 0 before a trace
};

} // namespace shardc::run
