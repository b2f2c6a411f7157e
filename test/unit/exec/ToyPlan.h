// A whole training job in a few ops: a bigram model whose single matrix is sharded over the ranks,
// with gathers, reductions, accumulation over microbatches, clipping and SGD. Short enough to read.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"
#include "runtime/run/BatchSource.h"

namespace shardc::test {

struct ToyOptions {
  int dp = 2;
  int microbatches = 2;
  int steps = 5;
  int evalEvery = 0; ///< 0: no evaluation
  double lr = 0.5;
  double initStd = 0.5;
  int feedSteps = 2;    ///< steps that the ring holds
  int snapshots = 0;    ///< background segments that copy the weights
  bool squares = false; ///< exchanges shards and squares them where they are formed
};

inline constexpr int kToyBatch = 2, kToySequence = 4, kToyVocab = 8, kToyHidden = 4;

/// The plan as text.
std::string toyPlanText(const ToyOptions &options);
/// The plan, parsed and verified; ends the test program if the verifier refuses it.
plan::Plan toyPlan(const ToyOptions &options);

/// Batches in which each token follows from the previous one; the same for any number of ranks.
class ToySource final : public run::BatchSource {
public:
  explicit ToySource(int globalBatch, int dp) : globalBatch_(globalBatch), dp_(dp) {}
  Status fill(run::FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
              int64_t dp, const run::FeedEntry &entry) override;

  int64_t evalVisitMax = -1, trainVisitMax = -1;
  int64_t nanStep = -1; ///< writes a mask that is not finite at this visit
  int64_t fillCount = 0;

private:
  int globalBatch_, dp_;
};

} // namespace shardc::test
