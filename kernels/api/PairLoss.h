// The losses of a pair of answers, for the kernels of all backends: formulas of TRL 1.16
// (DPOTrainer, and ORPOTrainer of its experimental ones); smoothing of `sigmoid` as in TRL 0.9.
#pragma once

#include <cmath>

#include "kernels/api/Kernel.h"
#include "runtime/base/Preference.h"

#ifdef __CUDACC__
#define SHARDC_EACH_SIDE __host__ __device__
#else
#define SHARDC_EACH_SIDE
#endif

namespace shardc::kernels {

/// Sums over the places of a document.
struct Answer {
  double loss = 0, tokens = 0;           ///< of what counts in the loss
  double reference = 0;                  ///< its log-probability by the reference model
  double lossOfAll = 0, tokensOfAll = 0; ///< of all places
};

/// What a pair adds to the metrics, and the gradients of its loss with respect to the losses of
/// tokens: of those that count, and of all of the chosen answer's.
struct PairLoss {
  double loss = 0;
  double chosen = 0, rejected = 0, all = 0;
  double metrics[kPairMetrics] = {};
};

struct PairSettings {
  int64_t kind;
  double beta, smoothing;
};

inline PairSettings pairSettingsOf(const Call &call) {
  return {call.attrs.preference, call.attrs.beta, call.attrs.label_smoothing};
}

SHARDC_EACH_SIDE inline double sigmoidOf(double x) {
  return x >= 0 ? 1 / (1 + ::exp(-x)) : ::exp(x) / (1 + ::exp(x));
}
SHARDC_EACH_SIDE inline double logSigmoidOf(double x) {
  return x >= 0 ? -::log1p(::exp(-x)) : x - ::log1p(::exp(x));
}
/// log(1 - exp(x)) of x below 0.
SHARDC_EACH_SIDE inline double log1mExpOf(double x) {
  return x > -0.693 ? ::log(-::expm1(x)) : ::log1p(-::exp(x));
}

/// The loss of a difference of scores, and its gradient in `slope`.
SHARDC_EACH_SIDE inline double lossOfScores(const PairSettings &s, double delta, double &slope) {
  if (s.kind == kIpo) {
    double error = delta - 1 / (2 * s.beta);
    slope = 2 * error;
    return error * error;
  }
  double x = s.beta * delta, changed = s.kind == kRobust ? -s.smoothing : s.smoothing;
  double whole = s.kind == kRobust ? 1 - 2 * s.smoothing : 1;
  slope = s.beta * (changed * sigmoidOf(x) - (1 - s.smoothing) * sigmoidOf(-x)) / whole;
  return -((1 - s.smoothing) * logSigmoidOf(x) + changed * logSigmoidOf(-x)) / whole;
}

SHARDC_EACH_SIDE inline PairLoss oddsLossOf(const PairSettings &s, const Answer &chosen,
                                            const Answer &rejected) {
  PairLoss pair;
  double mean[2] = {-chosen.loss / chosen.tokens, -rejected.loss / rejected.tokens};
  double odds = (mean[0] - mean[1]) - (log1mExpOf(mean[0]) - log1mExpOf(mean[1]));
  double nll = chosen.lossOfAll / chosen.tokensOfAll;
  double slope = -s.beta * sigmoidOf(-odds); // of odds, whose slope of a mean is 1 / (1 - exp)
  pair.loss = nll - s.beta * logSigmoidOf(odds);
  pair.chosen = slope / (::expm1(mean[0]) * chosen.tokens);
  pair.rejected = -slope / (::expm1(mean[1]) * rejected.tokens);
  pair.all = 1 / chosen.tokensOfAll;
  double rewards[2] = {s.beta * mean[0], s.beta * mean[1]};
  double metrics[kPairMetrics] = {
      1, rewards[0], rewards[1], rewards[0] > rewards[1] ? 1.0 : 0.0, mean[0], mean[1], nll, odds};
  for (int i = 0; i < kPairMetrics; ++i)
    pair.metrics[i] = metrics[i];
  return pair;
}

SHARDC_EACH_SIDE inline PairLoss pairLossOf(const PairSettings &s, const Answer &chosen,
                                            const Answer &rejected) {
  if (s.kind == kOrpo)
    return oddsLossOf(s, chosen, rejected);
  PairLoss pair;
  double scores[2] = {-chosen.loss - chosen.reference, -rejected.loss - rejected.reference};
  bool isMean = s.kind == kIpo || s.kind == kSigmoidNorm;
  double shares[2] = {isMean ? 1 / chosen.tokens : 1, isMean ? 1 / rejected.tokens : 1};
  double slope = 0;
  pair.loss = lossOfScores(s, scores[0] * shares[0] - scores[1] * shares[1], slope);
  pair.chosen = -slope * shares[0];
  pair.rejected = slope * shares[1];
  double metrics[kPairMetrics] = {1,
                                  s.beta * scores[0],
                                  s.beta * scores[1],
                                  scores[0] > scores[1] ? 1.0 : 0.0,
                                  -chosen.loss,
                                  -rejected.loss,
                                  0,
                                  0};
  for (int i = 0; i < kPairMetrics; ++i)
    pair.metrics[i] = metrics[i];
  return pair;
}

} // namespace shardc::kernels
