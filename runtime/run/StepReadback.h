// Copies of the step state and of other reported values from the device to the host, in the order
// in which they were queued. Copies go to a ring of host buffers. `take` waits for the oldest one
// only.
#pragma once

#include <array>
#include <cstring>
#include <memory>

#include "runtime/base/Reports.h"
#include "runtime/base/StepState.h"
#include "runtime/exec/Executable.h"
#include "runtime/plan/Builder.h"
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
  Status prepare() {
    const plan::Role &role = executable_.role();
    uint32_t step = plan::findCell(role, plan::CellKind::Step);
    if (step == plan::kNone)
      return Status::ok();
    const plan::Cell &cell = role.cells[step];
    if (cell.type.bytes() != static_cast<int64_t>(sizeof(StepState)))
      return makeStatus(report::PlanCannotRun, "@step has {} bytes, a step state has {}",
                        cell.type.bytes(), sizeof(StepState));
    ASSIGN_OR_RETURN(address_,
                     executable_.arenas(0).resolve(cell.place, cell.type.bytes(), "@step"));
    RETURN_IF_ERROR(findReported());
    hal::Device &device = executable_.device(0);
    ASSIGN_OR_RETURN(buffer_,
                     device.allocate(hal::MemoryKind::Host, kCopies * slotBytes_, "step readback"));
    for (Slot &slot : slots_) {
      ASSIGN_OR_RETURN(slot.event, device.createTimedEvent());
    }
    ASSIGN_OR_RETURN(clockStart_, device.createTimedEvent());
    return Status::ok();
  }

  bool hasState() const { return address_ != nullptr; }

  /// Skipped: no step is queued, but its number is used.
  enum class Kind : uint8_t { Step, Skipped, Evaluation };
  /// Starts measuring times: earlier host work belongs to no step.
  Status startClock() {
    if (!hasState())
      return Status::ok();
    clockStartsAt_ = queued_;
    return executable_.computeStream(0).record(*clockStart_);
  }

  /// Queues a copy after everything that is queued on the first rank of this process. Must not be
  /// called if isFull().
  Status queue(Kind kind, int64_t iteration, const HostTimer &timer) {
    if (!hasState())
      return Status::ok();
    Slot &slot = slots_[queued_ % kCopies];
    slot.kind = kind;
    slot.iteration = iteration;
    hal::Stream &stream = executable_.computeStream(0);
    uint8_t *to = buffer_->data() + queued_ % kCopies * slotBytes_;
    RETURN_IF_ERROR(stream.copy(to, address_, sizeof(StepState), "read the step state back"));
    for (const Reported &reported : reported_)
      if (reported.address != nullptr)
        RETURN_IF_ERROR(stream.copy(to + reported.offset, reported.address,
                                    reported.floats * sizeof(float), "read sums of the step back"));
    RETURN_IF_ERROR(stream.record(*slot.event));
    slot.host = timer.step();
    ++queued_;
    stepsQueued_ += kind == Kind::Step;
    return Status::ok();
  }

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
  Result<Copy> take(HostTimer &timer) {
    Slot &slot = slots_[taken_ % kCopies];
    RETURN_IF_ERROR(timer.wait([&] { return slot.event->synchronize(); }));
    Copy copy{slot.kind, slot.iteration, {}, {}, slot.host};
    const uint8_t *from = buffer_->data() + taken_ % kCopies * slotBytes_;
    std::memcpy(&copy.state, from, sizeof(StepState));
    for (size_t i = 0; i < kReportedCount; ++i)
      if (reported_[i].address != nullptr)
        copy.reported[i] = {reinterpret_cast<const float *>(from + reported_[i].offset),
                            reported_[i].floats};
    hal::Event &before =
        taken_ == clockStartsAt_ ? *clockStart_ : *slots_[(taken_ - 1) % kCopies].event;
    copy.took = slot.event->secondsSince(before);
    ++taken_;
    stepsQueued_ -= slot.kind == Kind::Step;
    return copy;
  }

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
  /// Finds the cells whose values are reported, and gives each a place in a slot. Cells that the
  /// plan lacks are skipped.
  Status findReported() {
    const plan::Role &role = executable_.role();
    for (size_t i = 0; i < kReportedCount; ++i) {
      uint32_t index = plan::findCell(role, kReportedCells[i]);
      if (index == plan::kNone)
        continue;
      const plan::Cell &cell = role.cells[index];
      ASSIGN_OR_RETURN(reported_[i].address,
                       executable_.arenas(0).resolve(cell.place, cell.type.bytes(), cell.name));
      reported_[i].floats = static_cast<size_t>(cell.type.numel());
      reported_[i].offset = slotBytes_;
      slotBytes_ += reported_[i].floats * sizeof(float);
    }
    constexpr size_t kAlign = 128;
    slotBytes_ = (slotBytes_ + kAlign - 1) / kAlign * kAlign;
    return Status::ok();
  }

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
