// Finds the op that writes outside of a buffer: looks at the zones around all of them after each
// op.
#pragma once

#include "runtime/exec/Executable.h"

namespace shardc::exec {

/// Ends a run op by op with the backend's status, and the op and its recipe line, after the first
/// op that leaves a zone of the backend changed. Sees nothing where the backend keeps no zones.
class GuardCheck final : public OpObserver {
public:
  explicit GuardCheck(Executable &executable) : executable_(executable) {}
  void setStep(int64_t step) { step_ = step; } ///< for messages
  Status afterOp(const Position &position) override;

private:
  Executable &executable_;
  int64_t step_ = 0;
};

} // namespace shardc::exec
