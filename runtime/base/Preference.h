// Constants that op preference_loss and readers of its results share.
#pragma once

#include <cstdint>

namespace shardc {

/// Values of attribute `preference`.
enum PairLossKind : int64_t { kSigmoid, kSigmoidNorm, kIpo, kRobust, kOrpo, kSimpo, kHinge };

/// Whether the loss compares answers with those of a reference model.
constexpr bool hasReference(PairLossKind kind) { return kind != kOrpo && kind != kSimpo; }

/// Columns of the op's metrics; each is a sum over pairs.
enum PairMetric : int {
  kPairs,
  /// beta times the score of the chosen answer, and of the rejected one.
  kChosenReward,
  kRejectedReward,
  /// Pairs whose chosen answer has the higher score.
  kAccurate,
  /// Log-probabilities of both answers; for ORPO and SimPO, means over tokens.
  kChosenLogp,
  kRejectedLogp,
  /// For ORPO only, otherwise 0: the NLL of the chosen answer, and the log odds ratio.
  kNll,
  kLogOdds,
  kPairMetrics
};

} // namespace shardc
