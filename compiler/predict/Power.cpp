// The slowdown of matrix products by the power limit, as a function of their share of a step.
#include <algorithm>

#include "compiler/predict/KernelTable.h"
#include "compiler/predict/StepTime.h"

namespace shardc::predict {

bool takesPower(const plan::Op &op) {
  plan::CostClass cost = plan::opInfo(op).work.cost;
  return cost == plan::CostClass::Product || cost == plan::CostClass::Head;
}

double powerFactor(double shareOfProducts) {
  const auto &[first, last] = kPowerFactors;
  double part = std::clamp((shareOfProducts - first.x) / (last.x - first.x), 0.0, 1.0);
  return first.y + part * (last.y - first.y);
}

Device atPower(Device device, double factor) {
  device.sustained.bf16Tflops *= factor;
  device.sustained.fp8Tflops *= std::min(factor, 1.0);
  device.power *= factor;
  return device;
}

} // namespace shardc::predict
