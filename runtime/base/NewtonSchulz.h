// The iterations of Muon's orthogonalisation: X becomes a·X + (b·A + c·A²)·X with A = X·Xᵀ, with
// different coefficients in each iteration. The coefficients, and how they continue after the last
// one, equal those of emerging_optimizers.orthogonalized_optimizers.muon_utils; fp32 numbers are
// written as decimals.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace shardc {

/// Values of attribute ns_coefficients, in the order of its words. Sources: Simple is Keller
/// Jordan's Muon; PolarExpress is Amsel et al., arXiv 2505.16932; Cans is Grishina et al., arXiv
/// 2506.10935.
enum class NsCoefficients : uint8_t {
  Quintic,
  Simple,
  PolarExpress,
  Cans,
  Aol,
  DeepseekV4,
  Cubic5
};
/// Values of attribute update_scale: upstream's `muon_scale_mode`.
enum class UpdateScale : uint8_t { Spectral, UnitRmsNorm, ShapeScaling };
/// Values of attribute products: matrix products in bf16, in f32 by TF32 on GPUs, in f32.
enum class NsProducts : uint8_t { Medium, High, Highest };

/// The coefficients of one iteration.
struct NsStep {
  float a, b, c;
};

/// The published coefficients of a set, in the order of iterations.
inline std::span<const NsStep> nsSteps(NsCoefficients coefficients) {
  static constexpr NsStep kQuintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                        {3.9505f, -6.3029f, 2.6377f},
                                        {3.7418f, -5.5913f, 2.3037f},
                                        {2.8769f, -3.1427f, 1.2046f},
                                        {2.8366f, -3.0525f, 1.2012f}};
  static constexpr NsStep kSimple[] = {{3.4445f, -4.7750f, 2.0315f}};
  static constexpr NsStep kPolarExpress[] = {
      {8.2051f, -22.9019f, 16.4607f}, {4.0664f, -2.8612f, 0.5184f}, {3.9096f, -2.8234f, 0.5250f},
      {3.2856f, -2.4153f, 0.4853f},   {2.2779f, -1.6198f, 0.3985f}, {1.8726f, -1.2307f, 0.3585f},
      {1.8564f, -1.2132f, 0.3568f},   {1.8750f, -1.2500f, 0.3750f}};
  static constexpr NsStep kCans[] = {{8.4703f, -25.1081f, 18.6293f},
                                     {4.1828f, -3.1087f, 0.5806f},
                                     {3.9619f, -2.9541f, 0.5630f},
                                     {3.2866f, -2.4647f, 0.5074f},
                                     {2.2737f, -1.6447f, 0.4162f}};
  static constexpr NsStep kAol[] = {{4.0098f, -7.0585f, 2.4635f},
                                    {3.4585f, -5.5479f, 2.5959f},
                                    {2.7573f, -3.2939f, 1.4254f},
                                    {2.7215f, -3.0494f, 1.3169f}};
  static constexpr NsStep kLate = {2.0f, -1.5f, 0.5f}, kEarly = {3.4445f, -4.7750f, 2.0315f};
  static constexpr NsStep kDeepseekV4[] = {kEarly, kEarly, kEarly, kEarly, kEarly,
                                           kEarly, kEarly, kEarly, kLate,  kLate};
  static constexpr NsStep kCubic5[] = {{3.3656576f, -3.3420992f, 0.0f},
                                       {2.5744352f, -1.4957376f, 0.0f},
                                       {2.5368962f, -1.4312570f, 0.0f},
                                       {2.4418906f, -1.2764040f, 0.0f},
                                       {2.2230472f, -0.9630650f, 0.0f}};
  switch (coefficients) {
  case NsCoefficients::Quintic:
    return kQuintic;
  case NsCoefficients::Simple:
    return kSimple;
  case NsCoefficients::PolarExpress:
    return kPolarExpress;
  case NsCoefficients::Cans:
    return kCans;
  case NsCoefficients::Aol:
    return kAol;
  case NsCoefficients::DeepseekV4:
    return kDeepseekV4;
  case NsCoefficients::Cubic5:
    return kCubic5;
  }
  return kQuintic;
}

/// Coefficients of iteration `i`, counted from 0. After their last coefficients, some sets repeat
/// the last ones, and others start again with the first ones.
inline NsStep nsStep(NsCoefficients coefficients, int64_t i) {
  std::span<const NsStep> steps = nsSteps(coefficients);
  auto count = static_cast<int64_t>(steps.size());
  bool staysAtLast = coefficients == NsCoefficients::PolarExpress ||
                     coefficients == NsCoefficients::Cans ||
                     coefficients == NsCoefficients::DeepseekV4;
  return steps[static_cast<size_t>(staysAtLast ? std::min(i, count - 1) : i % count)];
}

/// The factor by which an orthogonalised matrix is multiplied.
inline double updateScale(UpdateScale scale, int64_t rows, int64_t columns) {
  auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  switch (scale) {
  case UpdateScale::Spectral:
    return std::sqrt(std::max(r, c));
  case UpdateScale::UnitRmsNorm:
    return std::sqrt(r / c);
  case UpdateScale::ShapeScaling:
    return std::sqrt(std::max(1.0, r / c));
  }
  return 1;
}

/// Limits of a batch that GPUs orthogonalise at a time: the number of matrices of one shape, and
/// their total number of elements. A single matrix may have more elements.
inline constexpr int64_t kNsBatchMatrices = 64, kNsBatchElements = int64_t{1} << 26;

/// Number of partial sums of the squares of each matrix on a GPU.
inline constexpr int kNsSquareSums = 256;

/// Smaller norms are replaced by this one, so that zero matrices stay zero.
inline constexpr float kNsNormMin = 1e-15f;

} // namespace shardc
