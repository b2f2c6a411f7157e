#include "compiler/predict/KernelRates.h"

#include <cmath>
#include <optional>
#include <vector>

#include "compiler/predict/KernelTable.h"
#include "compiler/predict/MeasuredRates.h"
#include "compiler/predict/StepTime.h"

namespace shardc::predict {

double curve(std::span<const Point> points, double x) {
  if (x <= points.front().x)
    return points.front().y;
  for (size_t i = 1; i < points.size(); ++i)
    if (x < points[i].x) {
      const Point &a = points[i - 1], &b = points[i];
      double share = std::log(x / a.x) / std::log(b.x / a.x);
      return a.y + share * (b.y - a.y);
    }
  return points.back().y;
}

const Device &measured() { return device(Gpu::H200); }

double matmulScale(const Device &device, DType type) {
  const DeviceRates &base = measured().sustained;
  if (type == DType::BF16 || type == DType::F16)
    return device.sustained.bf16Tflops / base.bf16Tflops;
  if (type == DType::F8E4M3 || type == DType::F8E5M2)
    return device.sustained.fp8Tflops / base.bf16Tflops;
  return device.sustained.fp32Tflops * 0.85 / base.bf16Tflops; // CUDA cores
}

/// Rates of a file were measured with products alone, that is, at the lowest power factor.
double ratedTflops(const Device &device, double measured) {
  return device.isHost() ? measured : measured / powerFactor(1) * device.power;
}

double productTflops(double extent) { return curve(kProductTflops, extent); }

/// The tables give the ratio between products of the head and of layers with the same extent.
double headRate(const Device &device, DType type, double hidden) {
  if (std::optional<double> rated =
          device.rates ? device.rates->productTflops(type, hidden) : std::nullopt)
    return ratedTflops(device, *rated) * curve(kHeadTflops, hidden) / productTflops(hidden);
  return curve(kHeadTflops, hidden) * matmulScale(device, type);
}

double attentionTflops(int64_t head, double sequence, bool isBackward) {
  std::vector<Point> points;
  int64_t row = head <= 96 ? 64 : 128;
  for (const AttentionRate &rate : kAttentionTflops)
    if (rate.head == row)
      points.push_back({rate.sequence, isBackward ? rate.backward : rate.forward});
  return curve(points, sequence);
}

/// TFLOP/s of grouped products on CUDA cores. A multiprocessor of compute capability 8.0 has half
/// as many cores but as many other units, so a larger share of its cores is busy.
double plainGroupedTflops(const Device &device) {
  return kPlainGroupedShares[device.hasHalfTheCores()] * device.peak.fp32Tflops;
}

/// Factor on rates that kernels by mma.sync reach on an H200, where these instructions reach 612
/// TFLOP/s (docs/benchmarks/mma.md). GPUs with faster instructions for products are assumed to
/// execute mma.sync at the H200's rate per multiprocessor.
double mmaScale(const Device &device) {
  constexpr double kPeakOfH200 = 612;
  return device.isFasterThanMma()
             ? static_cast<double>(device.multiprocessors) / measured().multiprocessors
             : device.sustained.bf16Tflops / kPeakOfH200;
}

double mmaAttentionTflops(const Device &device, int64_t head, bool drops, bool isBackward) {
  double tflops = 0;
  for (const MmaRate &rate : kMmaAttentionTflops)
    if (tflops == 0 && head <= rate.channels)
      tflops = isBackward ? rate.backward : rate.forward;
  return tflops * (drops ? kMmaDropout[isBackward] : 1.0) * mmaScale(device);
}

double mmaGroupedShare(const Device &device) {
  return kMmaGrouped * mmaScale(device) / matmulScale(device, DType::BF16);
}

/// Kernels on CUDA cores compute in fp32 for all types.
double plainAttentionTflops(const Device &device, bool isBackward) {
  return kPlainAttentionTflops[isBackward] * device.sustained.fp32Tflops /
         measured().sustained.fp32Tflops;
}

} // namespace shardc::predict
