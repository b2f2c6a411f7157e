#include "runtime/run/ModelFlops.h"

#include <algorithm>

namespace shardc::run {
namespace {

bool isOf(const plan::Plan &plan, const plan::Param &param, plan::UnitKind kind) {
  int32_t unit = param.block < 0 ? -1 : plan.blocks[static_cast<size_t>(param.block)].unit;
  return unit >= 0 && plan.units[static_cast<size_t>(unit)].kind == kind;
}

/// True for a table of which a token takes one row.
bool isTable(const plan::Plan &plan, const plan::Param &param) {
  return isOf(plan, param, plan::UnitKind::Embedding);
}

/// Weights that a token is multiplied with: of experts, those of as many as it goes to.
double weightsOf(const plan::Plan &plan, const plan::Param &param) {
  auto numel = static_cast<double>(param.wholeType().numel());
  if (!param.isStacked())
    return numel;
  return numel * static_cast<double>(plan.job.model.moeRouterTopk) /
         static_cast<double>(param.tensorCount());
}

/// Channels of a head, as the mean of keys and values.
double channelsOf(const plan::Job::Model &model) {
  if (!model.multiLatentAttention)
    return static_cast<double>(model.kvChannels);
  return static_cast<double>(model.qkHeadDim + model.qkPosEmbHeadDim + model.vHeadDim) / 2;
}

} // namespace

double modelFlopsPerToken(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  auto predictions = static_cast<double>(
      std::ranges::count(plan.units, plan::UnitKind::Prediction, &plan::Unit::kind));
  // Logits of a token: of the next one, and of each further one that is predicted.
  double logits = 1 + predictions, weights = 0;
  for (const plan::Param &param : plan.params)
    if (param.type.rank > 1 && !isTable(plan, param))
      weights += weightsOf(plan, param) * (isOf(plan, param, plan::UnitKind::Head) ? logits : 1);
  if (model.shareEmbeddingsAndOutputWeights) // the output projection takes the tokens' table
    weights += static_cast<double>(plan.job.derived.paddedVocabSize) *
               static_cast<double>(model.hiddenSize) * logits;
  double layers = static_cast<double>(model.numLayers) + predictions;
  double attention = layers * static_cast<double>(model.seqLength) *
                     static_cast<double>(model.numAttentionHeads) * channelsOf(model);
  return 6 * (weights + attention);
}

double peakFlops(const plan::Plan &plan) { return 1e12 * plan.job.derived.peakTflops; }

} // namespace shardc::run
