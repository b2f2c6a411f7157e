// Counts the products with weights and those of attention: per weight and token 2 FLOPs in the
// forward pass, 2 for the gradient of the input and 2 for that of the weight, as far as they are
// needed. Frozen weights need fewer. Lookups in embedding tables count nothing.
#include "runtime/run/ModelFlops.h"

#include "runtime/plan/Optimizers.h"

#include <algorithm>

namespace shardc::run {
namespace {

bool isOf(const plan::Plan &plan, const plan::Param &param, plan::UnitKind kind) {
  int32_t unit = param.block < 0 ? -1 : plan.blocks[static_cast<size_t>(param.block)].unit;
  return unit >= 0 && plan.units[static_cast<size_t>(unit)].kind == kind;
}

/// Whether the parameter is an embedding table. A token reads only one row of it.
bool isTable(const plan::Plan &plan, const plan::Param &param) {
  return isOf(plan, param, plan::UnitKind::Embedding);
}

/// The number of weights that a token is multiplied with. Of the experts, only those that the token
/// is routed to count.
double weightsOf(const plan::Plan &plan, const plan::Param &param) {
  auto numel = static_cast<double>(param.wholeType().numel());
  if (!param.isStacked())
    return numel;
  return numel * static_cast<double>(plan.job.model.moeRouterTopk) /
         static_cast<double>(param.tensorCount());
}

/// Counts the products with a weight, which take 2 operations each: one in the forward pass; one
/// for the gradient of the input, unless no earlier parameter is trained; and one for the gradient
/// of the weight. Parameters are in the order in which tokens pass them.
class Passes {
public:
  explicit Passes(const plan::Plan &plan) : plan_(plan) {
    auto trained = std::ranges::find_if(
        plan.params, [&](const plan::Param &param) { return plan::isTrained(plan, param); });
    if (trained != plan.params.begin()) // otherwise gradients reach all parameters
      first_ = trained - plan.params.begin();
  }
  double of(const plan::Param &param) const {
    return (&param - plan_.params.data() > first_ ? 2 : 1) +
           (plan::isTrained(plan_, param) ? 1 : 0);
  }
  /// The products of the output layer if it is tied to the embedding table.
  double ofTiedHead() const {
    auto table = std::ranges::find_if(
        plan_.params, [&](const plan::Param &param) { return isTable(plan_, param); });
    return 2 + (table != plan_.params.end() && plan::isTrained(plan_, *table) ? 1 : 0);
  }
  /// The number of attention passes that a layer needs on average. Gradients of attention are
  /// needed if one of its parameters or an earlier one is trained.
  double ofAttention() const {
    double sum = 0, count = 0;
    int32_t unit = -1;
    for (const plan::Param &param : plan_.params) {
      if (!isOf(plan_, param, plan::UnitKind::Layer) || param.type.rank < 2 ||
          unitOf(param) == unit)
        continue;
      unit = unitOf(param); // the first matrix of the layer
      sum += &param - plan_.params.data() >= first_ ? 2 : 1, ++count;
    }
    return count > 0 ? sum / count : 2;
  }

private:
  int32_t unitOf(const plan::Param &param) const {
    return plan_.blocks[static_cast<size_t>(param.block)].unit;
  }
  const plan::Plan &plan_;
  std::ptrdiff_t first_ = -1; ///< the first trained parameter
};

/// Channels of a head: the mean of keys and values.
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
  // Logits per token: for the next token, and for each token of multi-token prediction.
  double logits = 1 + predictions, products = 0;
  const Passes passes(plan);
  for (const plan::Param &param : plan.params)
    if (param.type.rank > 1 && !isTable(plan, param))
      products += weightsOf(plan, param) * (isOf(plan, param, plan::UnitKind::Head) ? logits : 1) *
                  passes.of(param);
  if (model.shareEmbeddingsAndOutputWeights) // the output layer uses the embedding table
    products += static_cast<double>(plan.job.derived.paddedVocabSize) *
                static_cast<double>(model.hiddenSize) * logits * passes.ofTiedHead();
  double layers = static_cast<double>(model.numLayers) + predictions;
  double attention = layers * static_cast<double>(model.seqLength) *
                     static_cast<double>(model.numAttentionHeads) * channelsOf(model);
  // Each pass of attention has two products, one with keys and one with values.
  return 2 * products + 6 * attention * (2 * passes.ofAttention() - 1) / 3;
}

double peakFlops(const plan::Plan &plan) { return 1e12 * plan.job.derived.peakTflops; }

} // namespace shardc::run
