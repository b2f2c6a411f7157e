// Finds the op that writes outside of a buffer, by checking the guard zones of all buffers after
// each op.
#pragma once

#include "runtime/exec/Executable.h"

namespace shardc::run {

/// Ends a run op by op after the first op that changed a guard zone. The error has the backend's
/// status, the op and its recipe line. Has no effect if the backend has no guard zones.
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
