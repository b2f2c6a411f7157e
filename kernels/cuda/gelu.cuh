// gelu, geglu and squared relu of 8 elements, for kernels that store the results and kernels that
// quantise them.
#pragma once

#include "kernels/cuda/swiglu.cuh"

namespace shardc::kernels::cuda {

inline constexpr float kRootHalf = 0.70710678118654752f;
inline constexpr float kRootTwoOverPi = 0.79788456080286536f;
inline constexpr float kInvRootTwoPi = 0.39894228040143268f;
inline constexpr float kCubic = 0.044715f;

/// Variants of gelu. For bf16 results, the tanh approximation is computed as a sigmoid. The error
/// function is approximated to 1.5e-7 (Abramowitz and Stegun, 7.1.26), from the exponential that
/// its derivative needs too; below -3.8, the error of this exceeds one unit of f16. Other types use
/// the library's functions, so that results do not depend on whether a kernel has an f16 instance.
/// Sums of two products state explicitly which product is rounded, so that all kernels give the
/// same bits.
enum class Gelu { Erf, Tanh, FastErf, FastTanh };

/// Phi(x), and exp(-x²/2).
__device__ __forceinline__ float fastNormal(float x, float &bell) {
  float z = fabsf(x) * kRootHalf;
  float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  float sum = 1.061405429f;
  sum = sum * t - 1.453152027f;
  sum = sum * t + 1.421413741f;
  sum = sum * t - 0.284496736f;
  sum = sum * t + 0.254829592f;
  bell = __expf(-z * z);
  float beyond = 0.5f * sum * t * bell;
  return x >= 0.0f ? 1.0f - beyond : beyond;
}

/// GELU of x.
template <Gelu kBy> __device__ __forceinline__ float gelu(float x) {
  if (kBy == Gelu::FastErf) {
    float bell;
    return x * fastNormal(x, bell);
  }
  if (kBy == Gelu::FastTanh)
    return x * sigmoid(2.0f * kRootTwoOverPi * (x + kCubic * x * x * x));
  if (kBy == Gelu::Tanh)
    return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + kCubic * x * x * x)));
  return 0.5f * x * (1.0f + erff(x * kRootHalf));
}

/// The derivative of GELU at x.
template <Gelu kBy> __device__ __forceinline__ float geluSlope(float x) {
  if (kBy == Gelu::FastErf) {
    float bell, phi = fastNormal(x, bell);
    return phi + x * kInvRootTwoPi * bell;
  }
  if (kBy == Gelu::Erf)
    return fmaf(x * kInvRootTwoPi, expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * kRootHalf)));
  float inner = kRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
  if (kBy == Gelu::FastTanh) {
    float s = sigmoid(2.0f * kRootTwoOverPi * (x + kCubic * x * x * x));
    return s + 2.0f * x * s * (1.0f - s) * inner;
  }
  float t = tanhf(kRootTwoOverPi * (x + kCubic * x * x * x));
  return fmaf(0.5f * x * (1.0f - t * t), inner, 0.5f * (1.0f + t));
}

/// Calls use.operator()<variant>() with the variant for the mode.
template <Mode M, typename Use> __device__ __forceinline__ void byGelu(bool tanhApprox, Use use) {
  if (tanhApprox)
    use.template operator()<M == Mode::Bf16 ? Gelu::FastTanh : Gelu::Tanh>();
  else
    use.template operator()<M == Mode::Bf16 ? Gelu::FastErf : Gelu::Erf>();
}

/// The gated unit with GELU, with the interface of SwiGlu.
struct GeGlu {
  /// Replaces gate by y = gelu(gate)·up.
  template <Mode M>
  static __device__ void forward(float (&gate)[kChunk], const float (&up)[kChunk],
                                 bool tanhApprox) {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        gate[j] = gelu<kBy>(gate[j]) * up[j];
    });
  }
  /// Replaces gate and up by their gradients, and sets y to the forward result; d is y's gradient.
  template <Mode M>
  static __device__ void backward(const float (&d)[kChunk], float (&gate)[kChunk],
                                  float (&up)[kChunk], float (&y)[kChunk], bool tanhApprox) {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        float activated = gelu<kBy>(gate[j]);
        y[j] = activated * up[j];
        gate[j] = d[j] * up[j] * geluSlope<kBy>(gate[j]);
        up[j] = d[j] * activated;
      }
    });
  }
};

/// max(x, 0); NaN for NaN.
__device__ __forceinline__ float relu(float x) { return x <= 0.0f ? 0.0f : x; }

} // namespace shardc::kernels::cuda
