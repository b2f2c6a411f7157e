// Scores of experts, in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/base/Router.h"

namespace shardc::kernels::host {

/// The score of a logit by itself: sigmoid or sqrt(softplus).
inline double routerScore(int64_t score, double logit) {
  if (score == kRouterSigmoid)
    return 1 / (1 + std::exp(-logit));
  return std::sqrt(std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))));
}

/// Its derivative, from the score of the logit; 0 where sqrt(softplus) is 0.
inline double routerSlope(int64_t score, double logit, double value) {
  if (score == kRouterSigmoid)
    return value * (1 - value);
  return value == 0 ? 0 : 0.5 / ((1 + std::exp(-logit)) * value);
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
