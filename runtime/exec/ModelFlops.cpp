#include "runtime/exec/ModelFlops.h"

namespace shardc::exec {

double modelFlopsPerToken(const plan::Plan &plan) {
  bool isTied = plan.job.model.shareEmbeddingsAndOutputWeights;
  double weights = 0;
  for (const plan::Param &param : plan.params) {
    bool isTable = param.name.starts_with("embedding.");
    bool isOutput = isTied && param.name == "embedding.word_embeddings.weight";
    if (param.type.rank > 1 && (!isTable || isOutput))
      weights += static_cast<double>(param.type.numel());
  }
  const plan::Job::Model &model = plan.job.model;
  double attention = static_cast<double>(model.numLayers) * static_cast<double>(model.seqLength) *
                     static_cast<double>(model.numAttentionHeads) *
                     static_cast<double>(model.kvChannels);
  return 6 * (weights + attention);
}

double peakFlops(const plan::Plan &plan) { return 1e12 * plan.job.derived.peakTflops; }

} // namespace shardc::exec
