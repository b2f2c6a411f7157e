// Copies of the step state and of other reported values from the device to the host, in the order
// in which they were queued.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/StepState.h"
#include "runtime/exec/Executable.h"
#include "runtime/run/HostTimer.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// Number of steps that may be queued before the first of them has ended.
inline constexpr int kStepsAhead = 2;

class StepReadback {
public:
  /// The executable must outlive it.
  explicit StepReadback(exec::Executable &executable) : executable_(executable) {}

  /// Finds the step state. If the plan has none, nothing is copied, and startClock() and queue() do
  /// nothing.
  Status prepare();
  bool hasState() const { return address_ != nullptr; }

  /// Skipped: no step is queued, but its number is used.
  enum class Kind : uint8_t { Step, Skipped, Evaluation };
  /// Starts measuring times: earlier host work belongs to no step.
  Status startClock();
  /// Queues a copy after everything that is queued on the first rank of this process. Must not be
  /// called if isFull().
  Status queue(Kind kind, int64_t iteration, const HostTimer &timer);

  bool isFull() const { return queued_ - taken_ == kCopies - 1; }
  bool isEmpty() const { return taken_ == queued_; }
  int stepsQueued() const { return stepsQueued_; }

  struct Copy {
    Kind kind = Kind::Step;
    int64_t iteration = 0;
    StepState state{};
    ReportedCells reported; ///< valid until the next copy is queued
    HostTime host;          ///< to queue the step and this copy
    double took = 0;        ///< device seconds since the previous copy or the clock's start, or NaN
  };
  /// Waits for the oldest copy and returns it.
  Result<Copy> take(HostTimer &timer);

private:
  /// A copy of the reported values of one step, which is complete once the event is reached.
  struct Slot {
    Kind kind = Kind::Step;
    int64_t iteration = 0;
    HostTime host;
    std::unique_ptr<hal::Event> event;
  };
  /// Number of slots: one more than pending copies, since times are measured from the copy before
  /// the oldest one.
  static constexpr size_t kCopies = 2 * (kStepsAhead + 1);

  /// A cell that is copied after the step state.
  struct Reported {
    const uint8_t *address = nullptr; ///< null if the plan has no such cell
    size_t floats = 0, offset = 0;
  };
  Status findReported();

  exec::Executable &executable_;
  std::array<Reported, kReportedCount> reported_;
  size_t slotBytes_ = sizeof(StepState);
  const uint8_t *address_ = nullptr; ///< on the first rank of this process
  std::unique_ptr<hal::Buffer> buffer_;
  std::array<Slot, kCopies> slots_;
  std::unique_ptr<hal::Event> clockStart_; ///< the reference time of copy clockStartsAt_
  size_t clockStartsAt_ = 0;
  size_t queued_ = 0, taken_ = 0;
  int stepsQueued_ = 0;
};

} // namespace shardc::run
