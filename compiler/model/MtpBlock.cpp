#include "compiler/model/MtpBlock.h"

#include "compiler/model/Forward.h"

namespace shardc::model {

namespace {

constexpr const char *kLayer = "transformer_layer.";

/// Rolls x by `by` positions along each sequence. `keepsSum`: the mask is scaled to keep its sum,
/// so that the losses of fewer tokens have the same total weight.
ValueId rolled(Forward &to, ValueId x, int64_t by, const char *what, bool keepsSum) {
  Op roll = to.op(OpKind::Roll, {x});
  roll.set(Key::by, by).set(Key::per_token, int64_t{keepsSum});
  ValueId y = to.emit(std::move(roll), to.name(what), to.typeOf(x));
  to.setPurpose(y, plan::Purpose::Data);
  return y;
}

} // namespace

MtpBlock::MtpBlock(const MtpSettings &settings, Modules layer)
    : s_(settings), enorm_(s_.norm, s_.hidden, "enorm.", "enorm"),
      hnorm_(s_.norm, s_.hidden, "hnorm.", "hnorm"),
      norm_(s_.norm, s_.hidden, "final_layernorm.", "norm"),
      // Tensor-parallel ranks have rows of the operand, and the whole weight.
      projection_{ParamKind::Prediction,
                  "eh_proj",
                  s_.hidden,
                  times(2, s_.hidden),
                  false,
                  s_.initStd,
                  Linear::All},
      layer_(std::move(layer)) {}

void MtpBlock::declare(Params &params) const {
  enorm_.declare(params);
  hnorm_.declare(params);
  projection_.declare(params);
  Params layer;
  for (const auto &module : layer_)
    module->declare(layer);
  for (ParamSpec &param : layer) {
    param.name = kLayer + param.name;
    params.push_back(std::move(param));
  }
  norm_.declare(params);
}

ValueId MtpBlock::joined(Forward &to, ValueId embedded) const {
  ValueId ahead = enorm_.forward(to, embedded), hidden = hnorm_.forward(to, to.hidden);
  Type type = to.typeOf(ahead);
  type.shape[type.rank - 1u] = times(2, s_.hidden);
  ValueId both = to.emit(to.op(OpKind::JoinColumns, {ahead, hidden}), to.name("joined"), type);
  ValueId x = projection_.apply(to, both, "projected");
  type = to.typeOf(x);
  if (type.dtype == to.settings().residual)
    return x;
  type.dtype = to.settings().residual;
  return to.emit(to.op(OpKind::Cast, {x}), to.name("residual"), type);
}

/// Predicts one more token ahead: rolls tokens, labels and mask by one position more than the
/// previous block, and adds its loss to the reported sums. Embedding and head are shared with the
/// model, so their names have no prefix.
ValueId MtpBlock::forward(Forward &to, ValueId losses) const {
  const int64_t block = to.nextPrediction(), by = block + 1;
  const Batch &batch = to.batch();
  const Embedding embedding(s_.embedding);
  ValueId tokens = rolled(to, batch.tokens, by, "tokens", false);
  ValueId positions = embedding.hasPositions() ? rolled(to, batch.positions, by, "positions", false)
                                               : batch.positions;
  const std::string prefix = to.swapParamPrefix("");
  ValueId embedded = embedding.lookUp(to, tokens, positions);
  to.swapParamPrefix(prefix);
  ValueId x = joined(to, embedded);
  to.swapParamPrefix(prefix + kLayer);
  for (const auto &module : layer_)
    x = module->forward(to, x);
  to.swapParamPrefix(prefix);
  to.hidden = norm_.forward(to, x);
  ValueId labels = rolled(to, batch.labels, by, "labels", false);
  ValueId mask = rolled(to, batch.mask, by, "mask", s_.isPerToken);
  ValueId count =
      to.emit(to.op(OpKind::TokenCount, {mask}), to.name("count"), Type::of(DType::F32, {1}));
  to.swapParamPrefix("");
  ValueId own = Head(s_.head).losses(to, to.hidden, labels, mask, to.name("logits"));
  to.swapParamPrefix(prefix);
  ValueId column = to.reshaped(own, "losses.column", {to.typeOf(own).numel(), 1});
  to.tally("prediction_losses", column, block, s_.reportedShare, count);
  return losses;
}

} // namespace shardc::model
