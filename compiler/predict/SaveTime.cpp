#include "compiler/predict/SaveTime.h"

#include <algorithm>

#include "compiler/predict/StepTime.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"

namespace shardc::predict {

double stageSeconds(const Device &device, int64_t bytes) {
  return 2 * static_cast<double>(bytes) / (device.sustained.memoryGBs * 1e9); // read and written
}

double hostCopySeconds(const Device &device, int64_t bytes) {
  return static_cast<double>(bytes) / (device.sustained.hostGBs * 1e9);
}

double secondsBeforeUpdate(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  uint32_t update = plan::findSegment(role, plan::SegmentKind::Update);
  double seconds = predictStep(device, plan, role).step;
  if (update != plan::kNone)
    for (const plan::Op &op : role.segments[update].ops)
      seconds -= timeOf(device, plan, role.segments[update], op);
  return std::max(seconds, 0.0);
}

SaveTime saveTimeOf(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  int64_t all = plan::snapshotBytes(role), staged = plan::stagedBytes(role);
  SaveTime time{stageSeconds(device, staged), hostCopySeconds(device, all), 0};
  double awaited = time.staging + hostCopySeconds(device, all - staged);
  time.waiting = std::max(awaited - secondsBeforeUpdate(device, plan, role), 0.0);
  return time;
}

} // namespace shardc::predict
