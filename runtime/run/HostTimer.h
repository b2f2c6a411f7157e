// Measures the time of the thread that enqueues steps, divided into work and waits for the device.
#pragma once

#include <chrono>

#include "runtime/base/Status.h"

namespace shardc::run {

/// Host time of one step, in seconds.
struct HostTime {
  double work = -1;  ///< negative: unknown
  double waited = 0; ///< spent in waits for the device
};

class HostTimer {
public:
  using Clock = std::chrono::steady_clock;
  explicit HostTimer(Clock::time_point (*now)() = &Clock::now) : now_(now) {}

  void beginStep() {
    begin_ = now_();
    waited_ = 0;
  }
  /// Calls a function that mainly waits for the device, and counts its time as waiting.
  template <typename Wait> Status wait(Wait wait) {
    Clock::time_point begin = now_();
    Status status = wait();
    waited_ += secondsSince(begin);
    return status;
  }
  /// The host time since the step began.
  HostTime step() const { return {secondsSince(begin_) - waited_, waited_}; }

private:
  double secondsSince(Clock::time_point begin) const {
    return std::chrono::duration<double>(now_() - begin).count();
  }

  Clock::time_point (*now_)();
  Clock::time_point begin_;
  double waited_ = 0; ///< seconds of this step
};

} // namespace shardc::run
