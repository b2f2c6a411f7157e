// GELU and its derivative, by erf or by the tanh approximation, in fp32. Used by the activation and
// by products with GELU in their epilogue.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

inline constexpr float kRootHalf = 0.5f * std::numbers::sqrt2_v<float>;
inline constexpr float kRootTwoOverPi =
    std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
inline constexpr float kCubic = 0.044715f;

inline float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * kRootHalf)); }

inline float geluTanh(float x) {
  return 0.5f * x * (1.0f + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}

/// Phi(x) + x·phi(x).
inline float geluSlope(float x) {
  float density = kRootHalf * std::numbers::inv_sqrtpi_v<float> * std::exp(-0.5f * x * x);
  return 0.5f * (1.0f + std::erf(x * kRootHalf)) + x * density;
}

inline float geluTanhSlope(float x) {
  float t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  float inner = kRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

using GeluFunction = float (*)(float);

inline GeluFunction geluOf(const Attrs &attrs) { return attrs.tanh_approx ? geluTanh : gelu; }
inline GeluFunction geluSlopeOf(const Attrs &attrs) {
  return attrs.tanh_approx ? geluTanhSlope : geluSlope;
}

} // namespace shardc::kernels::host
