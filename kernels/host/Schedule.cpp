// A schedule has a linear warm-up, then decay by one of several formulas, then the smallest rate.
#include "kernels/host/Schedule.h"

#include "kernels/host/Check.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardc::kernels::host {
namespace {

/// Enumerators have the order of the words of decay_style, wsd_decay_style and weight_decay_style
/// in Attrs.def.
enum DecayStyle { Constant, Linear, Cosine, InverseSquareRoot, WarmupStableDecay, DecayStyles };
enum FinalStyle { FinalExponential, FinalLinear, FinalCosine, FinalMinusSqrt, FinalStyles };
enum WeightDecayStyle { DecayConstant, DecayLinear, DecayCosine, DecayStylesOfWeights };

/// The rates between which a schedule moves.
struct Bounds {
  double largest, smallest;
};

double cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

/// Weight of the largest rate in the last wsd_decay_steps steps of a warmup-stable-decay schedule.
double finalCoefficient(const Attrs &attrs, int64_t counted) {
  int64_t start = attrs.decay_steps - attrs.wsd_decay_steps;
  if (counted <= start)
    return 1.0;
  double ratio = static_cast<double>(counted - start) / static_cast<double>(attrs.wsd_decay_steps);
  switch (attrs.wsd_decay_style) {
  case FinalLinear:
    return 1.0 - ratio;
  case FinalCosine:
    return cosine(ratio);
  case FinalMinusSqrt:
    return 1.0 - std::sqrt(ratio);
  default:
    return 2.0 * std::pow(0.5, ratio) - 1.0;
  }
}

/// The learning rate after `counted` steps: it rises linearly during warmup, then decays from the
/// largest to the smallest rate by the decay style.
double rateBetween(Bounds bounds, const Attrs &attrs, int64_t counted) {
  double n = static_cast<double>(counted), warmup = static_cast<double>(attrs.warmup_steps);
  if (attrs.warmup_steps > 0 && counted <= attrs.warmup_steps)
    return attrs.warmup_init_lr + (bounds.largest - attrs.warmup_init_lr) * n / warmup;
  if (attrs.decay_style == Constant)
    return bounds.largest;
  if (counted > attrs.decay_steps)
    return bounds.smallest;
  if (attrs.decay_style == InverseSquareRoot)
    return std::max(bounds.smallest, bounds.largest * std::sqrt(std::max(warmup, 1.0)) /
                                         std::sqrt(std::max(n, 1.0)));
  double coefficient;
  if (attrs.decay_style == WarmupStableDecay) {
    coefficient = finalCoefficient(attrs, counted);
  } else {
    double ratio = (n - warmup) / (static_cast<double>(attrs.decay_steps) - warmup);
    coefficient = attrs.decay_style == Linear ? 1.0 - ratio : cosine(ratio);
  }
  return bounds.smallest + coefficient * (bounds.largest - bounds.smallest);
}

} // namespace

const char *checkSchedule(const Attrs &attrs) {
  SHARDC_REQUIRE(attrs.decay_style >= Constant && attrs.decay_style < DecayStyles,
                 "decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.warmup_steps >= 0, "warmup_steps is negative");
  SHARDC_REQUIRE(attrs.weight_decay_style >= DecayConstant &&
                     attrs.weight_decay_style < DecayStylesOfWeights,
                 "weight_decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.weight_decay_style == DecayConstant || attrs.weight_decay_steps > 0,
                 "weight_decay_steps is not positive");
  if (attrs.decay_style == Constant)
    return nullptr;
  SHARDC_REQUIRE(attrs.decay_steps > attrs.warmup_steps, "decay_steps is not above warmup_steps");
  if (attrs.decay_style != WarmupStableDecay)
    return nullptr;
  SHARDC_REQUIRE(attrs.wsd_decay_style >= FinalExponential && attrs.wsd_decay_style < FinalStyles,
                 "wsd_decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.wsd_decay_steps > 0, "wsd_decay_steps is not positive");
  return nullptr;
}

double learningRate(const Attrs &attrs, int64_t counted) {
  return rateBetween({attrs.lr, attrs.min_lr}, attrs, counted);
}

double decoupledRate(const Attrs &attrs, int64_t counted) {
  return rateBetween({attrs.decoupled_lr, attrs.decoupled_min_lr}, attrs, counted);
}

double weightDecay(const Attrs &attrs, int64_t counted) {
  if (attrs.weight_decay_style == DecayConstant)
    return 0;
  double ratio = static_cast<double>(counted) / attrs.weight_decay_steps;
  if (ratio > 1.0)
    return attrs.end_weight_decay;
  double coefficient = attrs.weight_decay_style == DecayLinear ? ratio : cosine(1.0 - ratio);
  return attrs.start_weight_decay +
         coefficient * (attrs.end_weight_decay - attrs.start_weight_decay);
}

} // namespace shardc::kernels::host
