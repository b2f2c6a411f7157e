// Scores of experts, in fp64, and the order in which experts are chosen.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/base/Router.h"

namespace shardc::kernels::host {

/// The score of a logit: sigmoid or sqrt(softplus).
inline double routerScore(int64_t score, double logit) {
  if (score == kRouterSigmoid)
    return 1 / (1 + std::exp(-logit));
  return std::sqrt(std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))));
}

/// The derivative of the score; `value` is the score itself. 0 where sqrt(softplus) is 0.
inline double routerSlope(int64_t score, double logit, double value) {
  if (score == kRouterSigmoid)
    return value * (1 - value);
  return value == 0 ? 0 : 0.5 / ((1 + std::exp(-logit)) * value);
}

/// Whether index a is chosen before index b: the larger value first, NaN before all numbers, and of
/// equal values the smaller index.
inline bool isBefore(const float *values, int32_t a, int32_t b) {
  float x = values[a], y = values[b];
  if (std::isnan(x) || std::isnan(y))
    return std::isnan(x) && (!std::isnan(y) || a < b);
  return x > y || (x == y && a < b);
}

/// The largest number of rows of an expert, if there are `choices` choices by all rows.
inline int64_t expertCapacity(int64_t choices, int64_t experts, double factor) {
  double rows = std::ceil(static_cast<double>(choices) / static_cast<double>(experts) * factor);
  return static_cast<int64_t>(std::min(rows, static_cast<double>(choices)));
}

/// The softmax of n > 0 logits.
inline void softmax(const float *logits, int64_t n, double *out) {
  double largest = logits[0], sum = 0;
  for (int64_t i = 1; i < n; ++i)
    largest = std::max<double>(largest, logits[i]);
  for (int64_t i = 0; i < n; ++i)
    sum += out[i] = std::exp(logits[i] - largest);
  for (int64_t i = 0; i < n; ++i)
    out[i] /= sum;
}

} // namespace shardc::kernels::host
