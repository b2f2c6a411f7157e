#include "kernels/host/Rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/host/Check.h"

namespace shardc::kernels::host {
namespace {

/// Llama 3.1's scaling of frequencies, with its constants. The model was trained on 8,192
/// positions. Waves longer than that are stretched by the factor, waves shorter than a quarter of
/// it are unchanged, and there is a ramp between the two. In fp32 like Megatron's _apply_scaling.
float scaled(float frequency, float factor) {
  constexpr float kPositions = 8192.0f, kLow = 1.0f, kHigh = 4.0f;
  float wave = 2.0f * std::numbers::pi_v<float> / frequency;
  if (factor == 1.0f || wave < kPositions / kHigh)
    return frequency;
  if (wave > kPositions / kLow)
    return frequency / factor;
  float ramp = (kPositions / wave - kLow) / (kHigh - kLow);
  return (1.0f - ramp) * frequency / factor + ramp * frequency;
}

/// The index of the pair that rotates `rotations` times within YaRN's original positions.
double pairOfRotations(const Attrs &attrs, double rotations) {
  double ratio = static_cast<double>(attrs.yarn_positions) / (rotations * 2 * std::numbers::pi);
  return static_cast<double>(attrs.rotary_dim) * std::log(ratio) /
         (2 * std::log(attrs.rotary_base));
}

} // namespace

Rotary::Rotary(const Attrs &attrs)
    : pairs(attrs.rotary_dim / 2), base(static_cast<float>(attrs.rotary_base)),
      scaling(static_cast<float>(attrs.rotary_scaling)),
      yarnFactor(static_cast<float>(attrs.yarn_factor)),
      perPosition(static_cast<float>(1 / attrs.rotary_interpolation)),
      magnitude(static_cast<float>(attrs.rotary_magnitude)), interleaved(attrs.rotary_interleaved) {
  if (attrs.yarn_factor == 1)
    return;
  double first = pairOfRotations(attrs, attrs.yarn_beta_fast);
  double last = pairOfRotations(attrs, attrs.yarn_beta_slow);
  if (attrs.yarn_round)
    first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(attrs.rotary_dim - 1));
  constexpr double kLeast = 0.001; // width of the ramp if both ends are equal
  rampFirst = static_cast<float>(first);
  rampWidth = static_cast<float>(first == last ? kLeast : last - first);
}

float Rotary::frequency(int64_t pair) const {
  float exponent = static_cast<float>(2 * pair) / static_cast<float>(2 * pairs);
  float power = std::pow(base, exponent), plain = 1.0f / power;
  if (yarnFactor == 1.0f)
    return scaled(plain, scaling);
  float ramp = std::clamp((static_cast<float>(pair) - rampFirst) / rampWidth, 0.0f, 1.0f);
  float kept = 1.0f - ramp, low = 1.0f / (yarnFactor * power);
  return low * (1.0f - kept) + plain * kept;
}

const char *checkRotary(const Attrs &attrs, int64_t channels) {
  int64_t rotated = attrs.rotary_dim;
  SHARDC_REQUIRE(rotated >= 2 && rotated % 2 == 0 && rotated <= channels,
                 "rotary_dim is not an even number from 2 to the head's channels");
  SHARDC_REQUIRE(attrs.rotary_base > 0, "rotary_base is not positive");
  SHARDC_REQUIRE(attrs.rotary_scaling > 0, "rotary_scaling is not positive");
  SHARDC_REQUIRE(attrs.rotary_interpolation > 0, "rotary_interpolation is not positive");
  SHARDC_REQUIRE(attrs.rotary_magnitude > 0, "rotary_magnitude is not positive");
  SHARDC_REQUIRE(attrs.yarn_factor > 0, "yarn_factor is not positive");
  if (attrs.yarn_factor == 1)
    return nullptr;
  SHARDC_REQUIRE(attrs.rotary_scaling == 1, "frequencies are scaled in two ways");
  SHARDC_REQUIRE(attrs.rotary_base > 1, "rotary_base is not above 1, as YaRN needs it");
  SHARDC_REQUIRE(attrs.yarn_positions > 0, "yarn_positions is not positive");
  SHARDC_REQUIRE(attrs.yarn_beta_slow > 0 && attrs.yarn_beta_fast >= attrs.yarn_beta_slow,
                 "yarn_beta_slow is not between 0 and yarn_beta_fast");
  return nullptr;
}

Angles::Angles(const Attrs &attrs, const Tensor &heads, const Tensor *positions, bool isBackwards,
               float *cosines, float *sines)
    : cosines_(cosines), sines_(sines), rows_(rowsOf(heads, positions)) {
  const auto *given =
      positions != nullptr ? static_cast<const int32_t *>(positions->data) : nullptr;
  Rotary rotary(attrs);
  pairs_ = rotary.pairs;
  isInterleaved_ = rotary.interleaved;
  for (int64_t i = 0; i < pairs_; ++i) {
    float frequency = rotary.frequency(i);
    for (int64_t s = 0; s < rows_; ++s) {
      float position = static_cast<float>(given != nullptr ? given[s] : s);
      float angle = position * rotary.perPosition * frequency;
      float sine = std::sin(angle) * rotary.magnitude;
      cosines[s * pairs_ + i] = std::cos(angle) * rotary.magnitude;
      sines[s * pairs_ + i] = isBackwards ? -sine : sine;
    }
  }
}

void Angles::rotate(int64_t row, const float *x, int64_t n, float *y) const {
  int64_t s = row % rows_;
  const float *cosines = cosines_ + s * pairs_, *sines = sines_ + s * pairs_;
  int64_t stride = isInterleaved_ ? 2 : 1, mate = isInterleaved_ ? 1 : pairs_;
  for (int64_t i = 0; i < pairs_; ++i) {
    float first = x[i * stride], second = x[i * stride + mate];
    y[i * stride] = first * cosines[i] - second * sines[i];
    y[i * stride + mate] = second * cosines[i] + first * sines[i];
  }
  std::copy(x + 2 * pairs_, x + n, y + 2 * pairs_);
}

} // namespace shardc::kernels::host
