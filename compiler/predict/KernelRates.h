// Rates of matrix products and of attention on a device, from KernelTable.h and from measured
// rates.
#pragma once

#include <cstdint>
#include <span>

#include "compiler/predict/DeviceTable.h"
#include "runtime/base/DType.h"

namespace shardc::predict {

struct Point {
  double x, y;
};

/// Interpolates between points with ascending x: linear in the logarithm of x, constant outside.
double curve(std::span<const Point> points, double x);

/// The device on which the tables were measured; other devices' rates are scaled.
const Device &measured();
/// Factor from the table's rates of products to the device's.
double matmulScale(const Device &device, DType type);
double ratedTflops(const Device &device, double measured);

/// TFLOP/s of the tables: of products whose smallest extent is `extent`, and of cuDNN's attention.
double productTflops(double extent);
double attentionTflops(int64_t head, double sequence, bool isBackward);
/// TFLOP/s of a device: of the output projection, and of hand-written kernels on CUDA cores.
double headRate(const Device &device, DType type, double hidden);
double plainGroupedTflops(const Device &device);
/// Attention by mma.sync, for heads of up to `head` channels.
double mmaAttentionTflops(const Device &device, int64_t head, bool drops, bool isBackward);
/// Factor of grouped products by mma.sync on the rate of matrix products.
double mmaGroupedShare(const Device &device);
double plainAttentionTflops(const Device &device, bool isBackward);

} // namespace shardc::predict
