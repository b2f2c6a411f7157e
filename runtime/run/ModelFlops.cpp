#include "runtime/run/ModelFlops.h"

namespace shardc::run {
namespace {

/// True for a table of which a token takes one row.
bool isTable(const plan::Plan &plan, const plan::Param &param) {
  int32_t unit = param.block < 0 ? -1 : plan.blocks[static_cast<size_t>(param.block)].unit;
  return unit >= 0 && plan.units[static_cast<size_t>(unit)].kind == plan::UnitKind::Embedding;
}

} // namespace

double modelFlopsPerToken(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  double weights = 0;
  for (const plan::Param &param : plan.params)
    if (param.type.rank > 1 && !isTable(plan, param))
      weights += static_cast<double>(param.wholeType().numel());
  if (model.shareEmbeddingsAndOutputWeights) // the output projection takes the tokens' table
    weights += static_cast<double>(plan.job.derived.paddedVocabSize) *
               static_cast<double>(model.hiddenSize);
  double attention = static_cast<double>(model.numLayers) * static_cast<double>(model.seqLength) *
                     static_cast<double>(model.numAttentionHeads) *
                     static_cast<double>(model.kvChannels);
  return 6 * (weights + attention);
}

double peakFlops(const plan::Plan &plan) { return 1e12 * plan.job.derived.peakTflops; }

} // namespace shardc::run
