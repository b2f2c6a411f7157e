// The slowdown of matrix products by the power limit, as a function of their share of a step.
#include <algorithm>
#include <iterator>

#include "compiler/predict/StepTime.h"

namespace shardc::predict {
namespace {

struct PowerPoint {
  double share, factor;
};

} // namespace

bool takesPower(const plan::Op &op) {
  plan::CostClass cost = plan::opInfo(op).work.cost;
  return cost == plan::CostClass::Product || cost == plan::CostClass::Head;
}

double powerFactor(double shareOfProducts) {
  static constexpr PowerPoint kPoints[] = {
#define POWER(share, factor) {share, factor},
#include "compiler/predict/KernelTable.def"
  };
  const PowerPoint &first = *std::begin(kPoints), &last = *std::rbegin(kPoints);
  double part = std::clamp((shareOfProducts - first.share) / (last.share - first.share), 0.0, 1.0);
  return first.factor + part * (last.factor - first.factor);
}

Device atPower(Device device, double factor) {
  device.sustained.bf16Tflops *= factor;
  device.sustained.fp8Tflops *= std::min(factor, 1.0);
  device.power *= factor;
  return device;
}

} // namespace shardc::predict
