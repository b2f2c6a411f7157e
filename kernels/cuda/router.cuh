// Scores of MoE routers on the device. A warp processes one row of logits; each lane has every 32nd
// expert. Scores and sums are fp64, as on the host.
#pragma once

#include "kernels/cuda/common.cuh"
#include "runtime/base/Router.h"

namespace shardc::kernels::cuda {

inline constexpr int kRouterWarps = 4; ///< rows per block

/// Grid size for one row per warp.
inline unsigned blocksOfRouter(int64_t rows) {
  return static_cast<unsigned>(ceilDiv(rows, kRouterWarps));
}

/// The row of this warp, which may be beyond the last one.
__device__ __forceinline__ int64_t rowOfWarp() {
  return int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / kWarp;
}

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

/// The sort key of a logit: an integer that orders logits as the router chooses them. NaN is the
/// largest, and both zeros are equal.
__device__ __forceinline__ uint32_t keyOf(float value) {
  if (value != value)
    return 0xffffffffu;
  uint32_t bits = __float_as_uint(value + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// The score of a logit: sigmoid or sqrt(softplus).
__device__ __forceinline__ double scoreOf(int64_t score, double logit) {
  if (score == kRouterSigmoid)
    return 1 / (1 + exp(-logit));
  return sqrt(fmax(logit, 0.0) + log1p(exp(-fabs(logit))));
}

/// The derivative of the score; `value` is the score itself. 0 where sqrt(softplus) is 0.
__device__ __forceinline__ double slopeOf(int64_t score, double logit, double value) {
  if (score == kRouterSigmoid)
    return value * (1 - value);
  return value == 0 ? 0 : 0.5 / ((1 + exp(-logit)) * value);
}

/// The softmax of some of a row's logits: exp(logit - largest) / sum.
struct Softmax {
  double largest, sum;

  __device__ double of(float logit) const { return exp(logit - largest) / sum; }
};

/// Computes the softmax of n logits, n at least one. All lanes of the warp must call it and get it.
__device__ __forceinline__ Softmax softmaxOfRow(const float *logits, int32_t n) {
  float largest = logits[0];
  for (int32_t i = lane(); i < n; i += kWarp)
    largest = fmaxf(largest, logits[i]);
  Softmax softmax = {static_cast<double>(warpMax(largest)), 0};
  for (int32_t i = lane(); i < n; i += kWarp)
    softmax.sum += exp(logits[i] - softmax.largest);
  softmax.sum = warpSum(softmax.sum);
  return softmax;
}

} // namespace shardc::kernels::cuda
