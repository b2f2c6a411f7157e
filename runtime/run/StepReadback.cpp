// Copies go to a ring of host buffers. `take` waits for the oldest one only.
#include "runtime/run/StepReadback.h"

#include <cstring>

#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"

namespace shardc::run {

Status StepReadback::prepare() {
  const plan::Role &role = executable_.role();
  uint32_t step = plan::findCell(role, plan::CellKind::Step);
  if (step == plan::kNone)
    return Status::ok();
  const plan::Cell &cell = role.cells[step];
  if (cell.type.bytes() != static_cast<int64_t>(sizeof(StepState)))
    return makeStatus(report::PlanCannotRun, "@step has {} bytes, a step state has {}",
                      cell.type.bytes(), sizeof(StepState));
  ASSIGN_OR_RETURN(address_, executable_.arenas(0).resolve(cell.place, cell.type.bytes(), "@step"));
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

/// Finds the cells whose values are reported, and gives each a place in a slot. Cells that the plan
/// lacks are skipped.
Status StepReadback::findReported() {
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

Status StepReadback::startClock() {
  if (!hasState())
    return Status::ok();
  clockStartsAt_ = queued_;
  return executable_.computeStream(0).record(*clockStart_);
}

Status StepReadback::queue(Kind kind, int64_t iteration, const HostTimer &timer) {
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

Result<StepReadback::Copy> StepReadback::take(HostTimer &timer) {
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

} // namespace shardc::run
