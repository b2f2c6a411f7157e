// What op preference_loss and its readers agree on.
#pragma once

#include <cstdint>

namespace shardc {

/// The values of attribute `preference`.
enum PairLossKind : int64_t { kSigmoid, kSigmoidNorm, kIpo, kRobust, kOrpo };

/// Columns of its metrics: sums over pairs.
enum PairMetric : int {
  kPairs,
  kChosenReward,
  kRejectedReward,
  kAccurate,
  kChosenLogp,
  kRejectedLogp,
  kNll,
  kLogOdds,
  kPairMetrics
};

} // namespace shardc
