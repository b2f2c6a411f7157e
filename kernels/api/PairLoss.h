// Preference losses of a pair of a chosen and a rejected answer, for the kernels of all backends.
// The formulas are those of TRL 1.16 (DPOTrainer and the experimental ORPOTrainer and CPOTrainer).
// Label smoothing of `sigmoid` follows TRL 0.9.
#pragma once

#include <cmath>

#include "kernels/api/EachSide.h"
#include "kernels/api/Kernel.h"
#include "runtime/base/Preference.h"

namespace shardc::kernels {

/// Sums over the tokens of one answer (one document of a sequence).
struct Answer {
  double loss = 0, tokens = 0;           ///< NLL sum, and count, of the unmasked tokens
  double reference = 0;                  ///< the reference model's log-probability
  double lossOfAll = 0, tokensOfAll = 0; ///< NLL sum and count of all tokens, including masked ones
};

/// A pair's loss, its contributions to the metrics, and its gradients with respect to token losses:
/// `chosen` and `rejected` apply to each unmasked token of that answer, `all` to every token of the
/// chosen answer.
struct PairLoss {
  /// One term of the sum over all pairs: nothing here divides by their number.
  double loss = 0;
  /// With respect to the NLL of one token.
  double chosen = 0, rejected = 0, all = 0;
  /// Columns: see PairMetric; each is this pair's term of a sum over pairs.
  double metrics[kPairMetrics] = {};
};

/// The loss (enum in runtime/base/Preference.h) and its hyperparameters.
struct PairSettings {
  int64_t kind;                  ///< a PairLossKind
  double beta, gamma, smoothing; ///< attributes `beta`, `simpo_gamma` and `label_smoothing`
};

/// The settings of a call of preference_loss. Its kernels have checked that beta > 0 and 0 <=
/// smoothing < 0.5.
inline PairSettings pairSettingsOf(const Call &call) {
  return {call.attrs.preference, call.attrs.beta, call.attrs.simpo_gamma,
          call.attrs.label_smoothing};
}

/// 1/(1 + exp(-x)) and its logarithm, without overflow. Host and device compute in fp64.
SHARDC_EACH_SIDE inline double sigmoidOf(double x) {
  return x >= 0 ? 1 / (1 + ::exp(-x)) : ::exp(x) / (1 + ::exp(x));
}
SHARDC_EACH_SIDE inline double logSigmoidOf(double x) {
  return x >= 0 ? -::log1p(::exp(-x)) : x - ::log1p(::exp(x));
}
/// log(1 - exp(x)) for x < 0.
SHARDC_EACH_SIDE inline double log1mExpOf(double x) {
  return x > -0.693 ? ::log(-::expm1(x)) : ::log1p(-::exp(x));
}

/// Returns the loss for `delta`, the chosen score minus the rejected one; `slope` is its
/// derivative.
SHARDC_EACH_SIDE inline double lossOfScores(const PairSettings &s, double delta, double &slope) {
  if (s.kind == kIpo) {
    double error = delta - 1 / (2 * s.beta);
    slope = 2 * error;
    return error * error;
  }
  double x = s.beta * delta - s.gamma;
  if (s.kind == kHinge) {
    slope = x < 1 ? -s.beta : 0;
    return x < 1 ? 1 - x : 0;
  }
  double changed = s.kind == kRobust ? -s.smoothing : s.smoothing;
  double whole = s.kind == kRobust ? 1 - 2 * s.smoothing : 1;
  slope = s.beta * (changed * sigmoidOf(x) - (1 - s.smoothing) * sigmoidOf(-x)) / whole;
  return -((1 - s.smoothing) * logSigmoidOf(x) + changed * logSigmoidOf(-x)) / whole;
}

/// ORPO: the NLL of the chosen answer minus beta times the log-sigmoid of the log odds ratio, from
/// mean log-probabilities per unmasked token. Needs no reference model. Source: Hong et al., "ORPO:
/// Monolithic Preference Optimization without Reference Model", 2024. Both answers need at least
/// one unmasked token, as in pairLossOf().
SHARDC_EACH_SIDE inline PairLoss oddsLossOf(const PairSettings &s, const Answer &chosen,
                                            const Answer &rejected) {
  PairLoss pair;
  double mean[2] = {-chosen.loss / chosen.tokens, -rejected.loss / rejected.tokens};
  double odds = (mean[0] - mean[1]) - (log1mExpOf(mean[0]) - log1mExpOf(mean[1]));
  double nll = chosen.lossOfAll / chosen.tokensOfAll;
  double slope = -s.beta * sigmoidOf(-odds); // d loss/d odds; d odds/d mean = 1/(1 - exp(mean))
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

/// The loss of a pair under any of the settings. Scores are log-probabilities relative to the
/// reference model, for SimPO alone; IPO, SimPO and `sigmoid_norm` divide them by the number of
/// unmasked tokens. Sources: Rafailov et al., "Direct Preference Optimization", 2023, for
/// `sigmoid`; Azar et al., "A General Theoretical Paradigm to Understand Learning from Human
/// Preferences", 2023, for IPO; Chowdhury et al., "Provably Robust DPO", 2024, for `robust`; Meng
/// et al., "SimPO: Simple Preference Optimization with a Reference-Free Reward", 2024.
SHARDC_EACH_SIDE inline PairLoss pairLossOf(const PairSettings &s, const Answer &chosen,
                                            const Answer &rejected) {
  if (s.kind == kOrpo)
    return oddsLossOf(s, chosen, rejected);
  PairLoss pair;
  double scores[2] = {-chosen.loss - chosen.reference, -rejected.loss - rejected.reference};
  bool isMean = s.kind == kIpo || s.kind == kSigmoidNorm || s.kind == kSimpo;
  double shares[2] = {isMean ? 1 / chosen.tokens : 1, isMean ? 1 / rejected.tokens : 1};
  double slope = 0;
  pair.loss = lossOfScores(s, scores[0] * shares[0] - scores[1] * shares[1], slope);
  pair.chosen = -slope * shares[0];
  pair.rejected = slope * shares[1];
  // TRL's metrics are of whole answers, except for SimPO.
  double reported[2] = {s.kind == kSimpo ? shares[0] : 1, s.kind == kSimpo ? shares[1] : 1};
  double rewards[2] = {s.beta * scores[0] * reported[0], s.beta * scores[1] * reported[1]};
  double metrics[kPairMetrics] = {1,
                                  rewards[0],
                                  rewards[1],
                                  rewards[0] > rewards[1] ? 1.0 : 0.0,
                                  -chosen.loss * reported[0],
                                  -rejected.loss * reported[1],
                                  0,
                                  0};
  for (int i = 0; i < kPairMetrics; ++i)
    pair.metrics[i] = metrics[i];
  return pair;
}

} // namespace shardc::kernels
