// A multi-token prediction block (Megatron-Core's MultiTokenPredictionLayer; DeepSeek-V3, arXiv
// 2412.19437, 2.2): norms of the embedding of a later token and of the head's operand, a product of
// both, a layer, a norm, and the shared head.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

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

class MtpBlock : public Module {
public:
  MtpBlock(const MtpSettings &settings, Modules layer)
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

  void declare(Params &params) const override {
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

  /// Block k, counted from 1, reads tokens, positions, labels and the mask k positions ahead, and
  /// the operand of the head or of the preceding block. Returns `losses`, the losses of the head,
  /// unchanged: the block's own losses start their own gradients, and only their mean is reported.
  /// Embedding and head are shared with the model, so their names have no prefix.
  ValueId forward(Forward &to, ValueId losses) const override {
    const int64_t block = to.nextPrediction(), by = block + 1;
    const Batch &batch = to.batch();
    ValueId tokens = rolled(to, batch.tokens, by, "tokens", false);
    ValueId positions = s_.embedding.positions > 0
                            ? rolled(to, batch.positions, by, "positions", false)
                            : batch.positions;
    const std::string prefix = to.swapParamPrefix("");
    ValueId embedded = embed(to, s_.embedding, tokens, positions);
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
    ValueId own = tokenLosses(to, s_.head, to.hidden, labels, mask, to.name("logits"));
    to.swapParamPrefix(prefix);
    ValueId column = to.reshaped(own, "losses.column", {to.typeOf(own).numel(), 1});
    to.tally("prediction_losses", column, block, s_.reportedShare, count);
    return losses;
  }

private:
  /// Emits the operand of the layer: a product of both, joined side by side.
  ValueId joined(Forward &to, ValueId embedded) const {
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

  MtpSettings s_;
  Norm enorm_, hnorm_, norm_;
  Linear projection_;
  Modules layer_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const MtpSettings &settings, Modules layer) {
  return std::make_unique<MtpBlock>(settings, std::move(layer));
}

} // namespace shardc::model
