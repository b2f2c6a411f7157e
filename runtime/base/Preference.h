// Constants that op preference_loss and readers of its results share.
#pragma once

#include <cstdint>

namespace shardc {

/// Values of attribute `preference`.
enum PairLossKind : int64_t { kSigmoid, kSigmoidNorm, kIpo, kRobust, kOrpo };

/// Columns of the op's metrics; each is a sum over pairs.
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
