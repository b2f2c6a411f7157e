// Finds the op that writes outside a buffer: checks the guard zones of all buffers after each
// op.
#pragma once

#include "runtime/exec/Executable.h"

namespace shardc::run {

/// Ends a run op by op with the backend's status, and the op and its recipe line, after the first
/// op that changed a guard zone. Has no effect if the backend has no guard zones.
class GuardCheck final : public exec::OpObserver {
public:
  explicit GuardCheck(exec::Executable &executable) : executable_(executable) {}
  void setStep(int64_t step) { step_ = step; } ///< for messages
  Status afterOp(const Position &position) override;

private:
  exec::Executable &executable_;
  int64_t step_ = 0;
};

} // namespace shardc::run
