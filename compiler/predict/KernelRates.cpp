#include "compiler/predict/KernelRates.h"

#include <array>
#include <cmath>
#include <optional>

#include "compiler/predict/MeasuredRates.h"
#include "compiler/predict/StepTime.h"

namespace shardc::predict {

double curve(const std::vector<Point> &points, double x) {
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

double productTflops(double extent) {
  static const std::vector<Point> kPoints = {
#define PRODUCT(extent, tflops) {extent, tflops},
#include "compiler/predict/KernelTable.def"
  };
  return curve(kPoints, extent);
}

static double headTflops(double hidden) {
  static const std::vector<Point> kPoints = {
#define HEAD(hidden, tflops) {hidden, tflops},
#include "compiler/predict/KernelTable.def"
  };
  return curve(kPoints, hidden);
}

/// The tables give the ratio between products of the head and of layers with the same extent.
double headRate(const Device &device, DType type, double hidden) {
  if (std::optional<double> rated =
          device.rates ? device.rates->productTflops(type, hidden) : std::nullopt)
    return ratedTflops(device, *rated) * headTflops(hidden) / productTflops(hidden);
  return headTflops(hidden) * matmulScale(device, type);
}

double attentionTflops(int64_t head, double sequence, bool isBackward) {
  std::vector<Point> points;
  int64_t row = head <= 96 ? 64 : 128;
#define ATTENTION(head, sequence, forward, backward)                                               \
  if (row == head)                                                                                 \
    points.push_back({sequence, 1.0 * (isBackward ? backward : forward)});
#include "compiler/predict/KernelTable.def"
  return curve(points, sequence);
}

/// TFLOP/s of grouped products on CUDA cores. A multiprocessor of compute capability 8.0 has half
/// as many cores but as many other units, so a larger share of its cores is busy.
double plainGroupedTflops(const Device &device) {
  static constexpr std::array<double, 2> kShares = {
#define PLAIN_GROUPED(share, ofHalf) share, ofHalf
#include "compiler/predict/KernelTable.def"
  };
  return kShares[device.hasHalfTheCores()] * device.peak.fp32Tflops;
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
  constexpr std::array<double, 2> kDropout = {
#define MMA_DROPOUT(forward, backward) forward, backward
#include "compiler/predict/KernelTable.def"
  };
  double tflops = 0;
#define MMA_ATTENTION(channels, forward, backward)                                                 \
  if (tflops == 0 && head <= channels)                                                             \
    tflops = isBackward ? backward : forward;
#include "compiler/predict/KernelTable.def"
  return tflops * (drops ? kDropout[isBackward] : 1.0) * mmaScale(device);
}

double mmaGroupedShare(const Device &device) {
  constexpr std::array<double, 1> kShare = {
#define MMA_GROUPED(share) share
#include "compiler/predict/KernelTable.def"
  };
  return kShare[0] * mmaScale(device) / matmulScale(device, DType::BF16);
}

/// Kernels on CUDA cores compute in fp32 for all types.
double plainAttentionTflops(const Device &device, bool isBackward) {
  static constexpr std::array<double, 2> kRates = {
#define PLAIN_ATTENTION(forward, backward) forward, backward
#include "compiler/predict/KernelTable.def"
  };
  return kRates[isBackward] * device.sustained.fp32Tflops / measured().sustained.fp32Tflops;
}

} // namespace shardc::predict
