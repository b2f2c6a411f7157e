// Rotary position embedding on the device: the frequencies and angles of kernels/host/Rotary.h, by
// the same operations. Only sine, cosine, and a power in fp64 use the device's own functions.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/host/Rotary.h"

namespace shardc::kernels::cuda {

/// Parameters of the rotation angles of a call. If interleaved, a pair consists of two adjacent
/// channels; otherwise of channels half a head apart.
struct Rotation {
  int pairs = 0; ///< 0: nothing is rotated
  float base = 1, scaling = 1, yarnFactor = 1, rampFirst = 0, rampWidth = 1, perPosition = 1;
  float magnitude = 1, sign = 1; ///< factors of both and of sines; sign -1: inverse rotation
  bool interleaved = false;
};

/// Reads the rotation from the attributes of a call. `isBackwards`: by the negative angles.
inline Rotation rotationOf(const Attrs &attrs, bool isBackwards) {
  host::Rotary rotary(attrs);
  Rotation rotation;
  rotation.pairs = static_cast<int>(rotary.pairs);
  rotation.base = rotary.base, rotation.scaling = rotary.scaling;
  rotation.yarnFactor = rotary.yarnFactor;
  rotation.rampFirst = rotary.rampFirst, rotation.rampWidth = rotary.rampWidth;
  rotation.perPosition = rotary.perPosition, rotation.magnitude = rotary.magnitude;
  rotation.sign = isBackwards ? -1.0f : 1.0f;
  rotation.interleaved = rotary.interleaved;
  return rotation;
}

/// The frequency after Llama 3.1's scaling by `factor`; 1: no scaling.
__device__ __forceinline__ float scaled(float frequency, float factor) {
  constexpr float kPositions = 8192.0f, kLow = 1.0f, kHigh = 4.0f;
  float wave = 6.2831855f / frequency;
  if (factor == 1.0f || wave < kPositions / kHigh)
    return frequency;
  if (wave > kPositions / kLow)
    return frequency / factor;
  float ramp = (kPositions / wave - kLow) / (kHigh - kLow);
  return (1.0f - ramp) * frequency / factor + ramp * frequency;
}

/// Angle of pair i per position.
__device__ __forceinline__ float frequencyOf(const Rotation &t, int i) {
  float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * t.pairs);
  auto power = static_cast<float>(pow(static_cast<double>(t.base), static_cast<double>(exponent)));
  float plain = 1.0f / power;
  if (t.yarnFactor == 1.0f)
    return scaled(plain, t.scaling);
  float ramp = fminf(fmaxf((static_cast<float>(i) - t.rampFirst) / t.rampWidth, 0.0f), 1.0f);
  float kept = 1.0f - ramp, low = 1.0f / (t.yarnFactor * power);
  return low * (1.0f - kept) + plain * kept;
}

/// Returns (cosine, sine) of a pair's angle at a position.
__device__ __forceinline__ float2 angleAt(const Rotation &t, int64_t position, float frequency) {
  float sine, cosine;
  sincosf(static_cast<float>(position) * t.perPosition * frequency, &sine, &cosine);
  return {cosine * t.magnitude, t.sign * (sine * t.magnitude)};
}

/// Rotates the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ void rotate(float2 angle, float &a, float &b) {
  float first = a * angle.x - b * angle.y;
  b = b * angle.x + a * angle.y;
  a = first;
}

} // namespace shardc::kernels::cuda
